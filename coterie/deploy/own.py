"""A silo's own data: a NumPy archive as it is; a table or pictures as all silos agree on."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coterie.data.arrays import class_labels
from coterie.data.npz import read_npz
from coterie.data.own.gather import check_drop, read_arrays, read_silo
from coterie.data.own.label import Label, Task
from coterie.data.own.ready import (
    OwnData,
    SplitHolding,
    capped,
    copied,
    drawn,
    encoded,
    far_values,
    fitted,
    identified,
    split,
)
from coterie.data.own.schema import Schema
from coterie.data.own.statistics import Statistics, declare, description_of
from coterie.data.silo import Part, Silo, check_silos
from coterie.errors import BadData, BadInput

FEWEST = 5  # values of a column of which statistics leave: those of two are both of them


@dataclass(frozen=True)
class SiloSource:
    """Where a silo's data are, and how its owner wants them read."""

    path: Path
    label: str = ""  # of tables: the column to predict
    drop: tuple[str, ...] = ()  # of tables: columns to leave out
    task: Task = "auto"
    text: tuple[str, ...] = ()  # of tables: columns of free text
    resize: int = 0  # of pictures: to so many pixels; 0: as they are
    standardize: bool = False  # by this silo's own means and deviations, which then do not leave
    group: str = ""  # of tables: the column whose values stay on one side of the split
    time: str = ""  # of tables: the column by which past rows train and the last ones test
    split_column: str = ""  # of tables: the column that holds train, validation or test for each row
    incumbent: str = ""  # the silo's own model of today: a column, or an ONNX file
    most_validation: int = OwnData.most_validation  # rows that validate at most, where they are drawn; 0: any
    most_test: int = OwnData.most_test  # likewise that test

    @property
    def archive(self) -> bool:
        """Whether it is arrays, which are taken as they are."""
        return self.path.suffix.lower() == ".npz"

    @property
    def options(self) -> OwnData:
        """The same for a simulation of this silo."""
        return OwnData(**{key: value for key, value in vars(self).items() if key not in ("path", "standardize")})


def read_source(text: str) -> tuple[SiloSource, str]:
    """From JSON, as a silo's programs hand it on; and the device to train on."""
    table = json.loads(text)
    device = table.pop("device")
    listed = {key: tuple(table.get(key, ())) for key in ("drop", "text")}
    return SiloSource(**table | {"path": Path(table["path"])} | listed), device


@contextmanager
def for_the_owner() -> Iterator[None]:
    """What is wrong with a silo's data may quote them: others learn only that something is."""
    try:
        yield
    except BadInput as error:
        raise BadData(str(error)) from None


class Raw:
    """A silo's table or pictures, split by its name, always alike."""

    @for_the_owner()
    def __init__(self, name: str, source: SiloSource) -> None:
        self.source, self.where = source, f"silo '{name}'"
        options = source.options
        holding = read_silo(source.path, source.label, source.drop, options.columns, source.resize)
        check_drop([holding], source.drop)  # each silo gives its own list, so it knows its own columns
        self.split: SplitHolding = split(replace(holding, name=name), options, 0)

    @for_the_owner()
    def statistics(self) -> Statistics:
        """What of it all silos must know to encode alike; of a column with few values nothing but that it is there."""
        own = self.split
        self._check_classes(own.label)
        shared = not self.source.standardize
        made = declare(own.holding.x, own.label, own.train, self.source.task, shared, self.where, text=self.source.text)
        enough, labels = made.count >= FEWEST, made.target[:, :1] >= FEWEST
        leaves = {"count": made.count * enough, "mean": made.mean * enough, "scatter": made.scatter * enough}
        return made.replace(**leaves, target=made.target * labels)

    def _check_classes(self, label: Label) -> None:
        """Few whole numbers may be classes, whose names leave, or each the label of one row: its owner knows which."""
        found = label.levels(self.source.task) or ()
        if label.kind == "number" and self.source.task == "auto" and len(found) > max(2, len(label.values) / 2):
            raise BadInput(
                f"{self.where} label {self.source.label!r}: {len(found)} different whole numbers in "
                f"{len(label.values)} rows would leave as the names of classes; give --task regression if they are "
                "numbers to predict, --task classification if they are classes"
            )

    def remarks(self) -> list[str]:
        """What of it is taken otherwise than it stands there or may flatter; for its owner alone: it quotes values."""
        own, numbers = self.split, description_of(self.statistics()).numbers
        quantity = own.label.levels(self.source.task) is None
        columns = far_values(own, numbers, quantity, self.source.label) + identified([own], self.source.options)
        rows = [each.what for each in (*copied(own, self.source.options), *capped(own))]
        return rows + [f"column {each.column!r}: {each.what}" for each in columns]

    @for_the_owner()
    def encoded(self, agreed: Schema) -> tuple[Silo, Schema]:
        """The silo as a model takes it, and by which schema."""
        if agreed.classes:
            new = sorted(set(self.split.label.names()) - set(agreed.classes))
            if new:
                raise BadInput(f"{self.where}: class {new[0]!r} is not among those that the silos declared")
        schema = fitted(agreed, self.split, self.source.standardize)
        silo = encoded(self.split, schema, incumbent=self.source.incumbent)
        check_silos([silo], len(schema.classes))
        return silo, schema


@for_the_owner()
def own_silo(name: str, path: Path) -> tuple[Silo, int]:
    """The silo that an archive holds, and its number of classes as far as it shows them (0: targets are numbers)."""
    x, raw, parts = read_arrays(read_npz(path), path)
    y = raw.astype(np.float32) if raw.dtype.kind == "f" else class_labels(raw, None, str(path))
    if parts is None:
        values = raw.astype(np.float64) if raw.ndim == 1 else np.arange(len(raw)) + 0.5  # of sequences: no classes
        share = drawn(name, Label("number", values), OwnData(), 0)
        parts = (share.train, share.validation, share.test)
    classes = 0 if y.dtype.kind == "f" else 1 + int(y.max())
    silo = Silo(name, *(Part(x[rows], y[rows], rows) for rows in parts))
    check_silos([silo], classes)
    return silo, classes


def save_silo(silo: Silo, path: Path) -> None:
    """A silo's data as such an archive."""
    parts = {"train": silo.train, "validation": silo.validation, "test": silo.test}
    arrays = {f"{axis}_{split}": getattr(part, axis) for split, part in parts.items() for axis in ("x", "y")}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
