"""What each silo holds: read from a folder with one file or folder a silo, or given in Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from coterie.data.archives import members
from coterie.data.arrays import model_inputs, pixels
from coterie.data.images import SUFFIXES, read_pictures
from coterie.data.mapped import kept, kept_columns
from coterie.data.npz import read_npz
from coterie.data.own.columns import without
from coterie.data.own.pfllib import is_pfllib, read_clients
from coterie.data.own.sides import NAMES, SIDES
from coterie.data.own.tables import read_table
from coterie.data.silo import Array, HoldsData, Indices
from coterie.errors import BadInput, nearest

TABLES = (".csv", ".parquet")


@dataclass(frozen=True, repr=False)
class Holding(HoldsData):
    """One silo's samples and labels as they are, before anything is agreed on."""

    name: str
    x: DataFrame | Array  # (n, ...)
    y: Series  # (n,)
    sides: Indices | None = None  # (n,) what each row is for, where the silo came split
    aside: DataFrame = field(default_factory=DataFrame)  # (n, ...) of a table: columns that are no features
    resize: int = 0  # pixels that its pictures were brought to
    incumbent: Any = None  # the silo's own model of today, where it is an object

    def about(self) -> str:
        return f"{self.name}: {len(self.y)} rows"

    @property
    def columns(self) -> list[str]:
        """Those of its table, also the ones that are left out."""
        return [str(name) for name in (*self.x.columns, *self.aside)] if isinstance(self.x, DataFrame) else []

    def resting(self) -> "Holding":
        """The same, with samples and numbers of a table that are beyond the limit of memory in files."""
        if not isinstance(self.x, DataFrame):
            return replace(self, x=kept(self.x))
        if not self.x.columns.map(str).is_unique:  # which is refused later, in words
            return self
        plain = {str(n): c for n, c in self.x.items() if isinstance(c.dtype, np.dtype) and c.dtype.kind in "iuf"}
        numbers = kept_columns({name: column.to_numpy() for name, column in plain.items()})
        columns = {name: numbers.get(str(name), column) for name, column in self.x.items()}
        return replace(self, x=DataFrame(columns, self.x.index, copy=False))

    def take(self, rows: Indices) -> "Holding":
        """Some of its rows."""
        x, aside = self.x, self.aside
        if isinstance(x, DataFrame):
            x, aside = (frame.iloc[rows].reset_index(drop=True) for frame in (x, aside))
        else:
            x = x[rows]
        sides = None if self.sides is None else self.sides[rows]
        return replace(self, x=x, y=self.y.iloc[rows].reset_index(drop=True), sides=sides, aside=aside)


def gather(path: Path, label: str, drop: Sequence[str] = (), by: Sequence[str] = (), resize: int = 0) -> list[Holding]:
    """The silos of a folder, named as their files or folders are; the columns `by` which they are split stay aside."""
    if not path.is_dir():
        raise BadInput(f"{path}: no such folder; give one with a file or a folder for each silo")
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    if not entries:
        raise BadInput(f"{path}: is empty; put a file or a folder for each silo into it")
    if is_pfllib(path):
        return [Holding(name, model_inputs(x, path), y, sides) for name, (x, y, sides) in read_clients(path).items()]
    split = [entry.name for entry in entries if entry.suffix.lower() in TABLES and entry.stem.lower() in SIDES]
    if {"train", "test"} <= {Path(name).stem.lower() for name in split}:
        files = ", ".join(split)
        raise BadInput(f"{path}: {files} are the split of one silo, not silos; put them into a folder of its name")
    holdings = [read_silo(entry, label, drop, by, resize).resting() for entry in entries]
    names = [holding.name for holding in holdings]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"{path}: two silos are called '{twice}'; rename a file")
    check_drop(holdings, drop)
    if resize and not any(holding.resize for holding in holdings):
        raise BadInput(f"--resize {resize}: no silo has pictures; leave it out")
    return holdings


def check_drop(holdings: Sequence[Holding], drop: Sequence[str]) -> None:
    """Refuse to leave out a column that no silo has: a misspelt one would stay in unnoticed."""
    known = {name for holding in holdings for name in holding.columns}
    for name in drop:
        if name not in known:
            raise BadInput(f"--drop {name}: no table has such a column; {nearest(name, known)}")


def read_silo(entry: Path, label: str, drop: Sequence[str] = (), by: Sequence[str] = (), resize: int = 0) -> Holding:
    """One silo's file or folder; `resize`: its pictures, to so many pixels in height and width."""
    kind = entry.suffix.lower()
    if kind in TABLES and entry.is_file():
        return from_frame(entry.stem, read_table(entry), label, drop, str(entry), by)
    if kind == ".npz" and entry.is_file():
        return from_arrays(entry.stem, read_npz(entry), entry)
    if not entry.is_dir():
        raise BadInput(f"{entry}: neither a .csv, .parquet or .npz file nor a folder; move it away or convert it")
    with members(entry) as found:
        if any(member.name.suffix.lower() in SUFFIXES for member in found):
            x, named = read_pictures(found, None, entry, resize)
            inputs = pixels(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
            return Holding(entry.name, inputs, Series([row["label"] for row in named], dtype=object), resize=resize)
    tables = sorted(file for file in entry.iterdir() if file.suffix.lower() in TABLES)
    if not tables:
        raise BadInput(f"{entry}: holds neither pictures nor .csv or .parquet tables; put some there or move it away")
    split = named_sides(tables, entry)
    tables = list(split.values()) or tables
    frames = [read_table(table) for table in tables]
    for table, frame in zip(tables, frames, strict=True):
        if set(frame.columns) != set(frames[0].columns):
            odd = sorted(set(frame.columns) ^ set(frames[0].columns))[0]
            raise BadInput(f"{table}: column {odd!r} is not in every table of {entry}; give them the same columns")
    holding = from_frame(entry.name, pd.concat(frames, ignore_index=True), label, drop, str(entry), by)
    return replace(holding, sides=np.repeat([*split], [len(frame) for frame in frames])) if split else holding


def named_sides(tables: Sequence[Path], entry: Path) -> dict[int, Path]:
    """The tables for training, validation and test in this order, where they are so named; else none."""
    by_name = [table for table in tables if table.stem.lower() in SIDES]
    if not by_name or len(tables) == 1:
        return {}
    sides = {SIDES[table.stem.lower()]: table for table in by_name}
    for name in ("train", "test"):
        if SIDES[name] not in sides:
            raise BadInput(f"{entry}: has {by_name[0].name} but no {name}; add one or rename it")
    odd = next((table for table in tables if table not in by_name), None)
    if odd is not None:
        raise BadInput(f"{entry}: {odd.name} beside {sides[0].name}; move it away or rename {sides[0].name}")
    if len(by_name) > len(sides):
        one, other = next((a, b) for a, b in pairwise(sorted(by_name, key=_side)) if _side(a) == _side(b))
        raise BadInput(f"{entry}: {one.name} and {other.name} are both for {NAMES[_side(one)]}; keep one of them")
    return dict(sorted(sides.items()))


def _side(table: Path) -> int:
    return SIDES[table.stem.lower()]


def from_frame(
    name: str, frame: DataFrame, label: str, drop: Sequence[str], where: str, by: Sequence[str] = ()
) -> Holding:
    """A silo that is a table."""
    if not label:
        raise BadInput(f"{where}: is a table; say which column to predict with --label COLUMN")
    if label not in frame.columns:
        raise BadInput(f"{where}: has no column {label!r} to predict; it has {', '.join(map(str, frame.columns[:12]))}")
    if label in drop:
        raise BadInput(f"--drop {label}: is the label; drop another column")
    frame = frame.reset_index(drop=True)
    x = without(frame, (label, *drop, *by))
    return Holding(name, x, frame[label], aside=without(frame, (label, *x.columns)))


def from_arrays(name: str, arrays: Mapping[str, Array], where: Path) -> Holding:
    """A silo that is arrays."""
    x, y, parts = read_arrays(arrays, where)
    sides = None if parts is None else np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return Holding(name, x, _column(y, str(where)), sides)


def read_arrays(arrays: Mapping[str, Array], where: Path) -> tuple[Array, Array, Sequence[Indices] | None]:
    """Inputs, labels and, where they come split, which of them are for what.

    The arrays are x and y; or x_train, y_train, x_test, y_test and maybe x_validation, y_validation.
    """
    arrays = {key: array for key, array in arrays.items() if array.ndim}
    if {"x", "y"} <= arrays.keys():
        y = _labels(arrays["y"])
        return _inputs(arrays["x"], y, where), y, None
    if not {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        found = ", ".join(sorted(arrays))
        raise BadInput(f"{where}: found arrays {found}; name them x and y, or x_train, y_train, x_test and y_test")
    pairs = [(arrays[f"x_{s}"], _labels(arrays[f"y_{s}"])) for s in NAMES if f"x_{s}" in arrays and f"y_{s}" in arrays]
    if len(pairs) == 2:
        pairs.insert(1, (pairs[0][0][:0], pairs[0][1][:0]))
    parts = [(_inputs(x, y, where), y) for x, y in pairs]
    if len({(x.shape[1:], x.dtype, y.shape[1:], y.dtype.kind) for x, y in parts}) > 1:
        raise BadInput(f"{where}: its parts have samples or labels of different shapes or types; give them one")
    ends = np.cumsum([len(y) for _, y in parts])[:-1]
    split = np.split(np.arange(sum(len(y) for _, y in parts)), ends)
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), split


def from_dataset(name: str, dataset: Any) -> Holding:
    """A silo that is a `torch.utils.data.Dataset` of (x, y) pairs, or a pair of arrays."""
    if isinstance(dataset, tuple) and len(dataset) == 2:
        x, y = (np.asarray(part) for part in dataset)
    elif hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        samples = [dataset[i] for i in range(len(dataset))]
        if not samples or any(not isinstance(sample, tuple | list) or len(sample) != 2 for sample in samples):
            raise BadInput(f"silo '{name}': a dataset must give pairs of a sample and its label, and some")
        try:
            x, y = (np.stack([np.asarray(sample[i]) for sample in samples]) for i in (0, 1))
        except (TypeError, ValueError) as error:
            raise BadInput(f"silo '{name}': samples cannot be stacked ({error}); give them one shape") from None
    else:
        raise BadInput(
            f"silo '{name}': a {type(dataset).__name__}; give a DataFrame, a pair (x, y) of arrays, "
            "or a torch.utils.data.Dataset with a length"
        )
    labels = _labels(y)
    return Holding(name, _inputs(x, labels, Path(f"silo '{name}'")), _column(labels, f"silo '{name}'"))


def _column(y: Array, where: str) -> Series:
    if y.ndim != 1:
        raise BadInput(f"{where}: labels are {y.shape}; give one label for each sample")
    return Series(y)


def _inputs(x: Array, y: Array, where: Path) -> Array:
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise BadInput(f"{where}: inputs {x.shape} for {len(y) if y.ndim else 0} labels; give one label per input")
    return model_inputs(x, where)


def _labels(y: Array) -> Array:
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
