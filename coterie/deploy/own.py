"""A silo's own data: a NumPy archive as it is; a table or pictures as all silos agree on."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coterie.data.arrays import class_labels, model_inputs
from coterie.data.npz import read_npz
from coterie.data.own.gather import check_drop, read_silo
from coterie.data.own.label import Task
from coterie.data.own.ready import Own, Split, by_itself, encoded, split
from coterie.data.own.schema import Schema
from coterie.data.own.statistics import Statistics, declare
from coterie.data.silo import Array, Part, Silo, check_silos
from coterie.errors import BadInput
from coterie.keys import generator

SHARES = (0.6, 0.2)  # of samples that come without a split: training, validation; the rest is the test


@dataclass(frozen=True)
class Source:
    """Where a silo's data are, and how its owner says to read them."""

    path: Path
    label: str = ""  # of tables: the column to predict
    drop: tuple[str, ...] = ()  # of tables: columns to leave out
    task: Task = "auto"
    standardize: bool = False  # by this silo's own means and deviations, which then do not leave

    @property
    def archive(self) -> bool:
        """Whether it is arrays, which are taken as they are."""
        return self.path.suffix.lower() == ".npz"


def read_source(text: str) -> tuple[Source, str]:
    """From JSON, as a silo's programs hand it on; and the device to train on."""
    table = json.loads(text)
    return Source(Path(table["path"]), table["label"], tuple(table["drop"]), table["task"]), table["device"]


class Raw:
    """A silo's table or pictures, split by its name, always alike."""

    def __init__(self, name: str, source: Source) -> None:
        self.source, self.where = source, f"silo '{name}'"
        holding = read_silo(source.path, source.label, source.drop)
        check_drop([holding], source.drop)  # each silo gives its own list, so it knows its own columns
        self.split: Split = split(replace(holding, name=name), Own(task=source.task), 0)

    def statistics(self) -> Statistics:
        """What of it all silos must know to encode alike."""
        own = self.split
        shared = not self.source.standardize
        return declare(own.holding.x, own.label, own.train, self.source.task, shared, self.where)

    def encoded(self, agreed: Schema) -> tuple[Silo, Schema]:
        """The silo as a model takes it, and by which schema."""
        if agreed.classes:
            new = sorted(set(self.split.label.names()) - set(agreed.classes))
            if new:
                raise BadInput(f"{self.where}: class {new[0]!r} is not among those that the silos declared")
        schema = by_itself(agreed, self.split) if self.source.standardize else agreed
        silo = encoded(self.split, schema)
        check_silos([silo], len(schema.classes))
        return silo, schema


def own_silo(name: str, path: Path) -> tuple[Silo, int]:
    """The silo that an archive holds, and its number of classes as far as it can tell (0: targets are numbers).

    The archive has x_train, y_train, x_test, y_test and maybe x_validation, y_validation; or x and y, which are split
    by the silo's name, always alike.
    """
    arrays = {key: array for key, array in read_npz(path).items() if array.ndim}
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        named = [(arrays.get(f"x_{s}"), arrays.get(f"y_{s}")) for s in ("train", "validation", "test")]
        empty = arrays["x_train"][:0], arrays["y_train"][:0]
        raw = [empty if x is None or y is None else (x, y) for x, y in named]
    elif {"x", "y"} <= arrays.keys():
        x, y = arrays["x"], arrays["y"]
        if len(x) != len(y):
            raise BadInput(f"{path}: x {x.shape} and y {y.shape} do not go together; give one label per input")
        order = generator(0, "silo split", name).permutation(len(y))
        ends = [int(len(y) * SHARES[0]), int(len(y) * sum(SHARES))]
        raw = [(x[part], y[part]) for part in np.split(order, ends)]
    else:
        found = ", ".join(sorted(arrays))
        raise BadInput(f"{path}: found arrays {found}; name them x_train, y_train, x_test, y_test, or x and y")
    parts = [_part(x, y, path) for x, y in raw]
    labels = parts[0].y
    classes = 0 if labels.dtype.kind == "f" else 1 + max(int(p.y.max()) for p in parts if len(p))
    if len({(part.x.shape[1:], part.y.shape[1:], part.y.dtype.kind) for part in parts}) > 1:
        found = ", ".join(f"x {part.x.shape} and y {part.y.shape} of {part.y.dtype}" for part in parts)
        raise BadInput(f"{path}: training, validation and test samples are not alike ({found}); give them one shape")
    silo = Silo(name, *parts)
    check_silos([silo], classes)
    return silo, classes


def save_silo(silo: Silo, path: Path) -> None:
    """A silo's data as such an archive."""
    parts = {"train": silo.train, "validation": silo.validation, "test": silo.test}
    arrays = {f"{axis}_{split}": getattr(part, axis) for split, part in parts.items() for axis in ("x", "y")}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def _part(x: Array, y: Array, path: Path) -> Part:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.dtype.kind == "f":
        return Part(model_inputs(x, path), y.astype(np.float32))
    return Part(model_inputs(x, path), class_labels(y, None, str(path)) if len(y) else y.astype(np.int64))
