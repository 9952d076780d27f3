"""What a table's columns hold of its split: which rows belong together, what came when, and which row is for what."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from coterie.data.allot import HeldOut
from coterie.data.own.columns import check_read, numbers_in
from coterie.data.silo import HoldsData, Indices
from coterie.errors import BadInput, nearest
from coterie.options import option

TRAIN, VALIDATION, TEST = range(3)
SIDES = {"train": TRAIN, "validation": VALIDATION, "val": VALIDATION, "valid": VALIDATION, "test": TEST}
NAMES = ("train", "validation", "test")
DAYS = r"(\d{1,2})([./])(\d{1,2})[./](\d{4})(.*)"  # a date that does not begin with its year


@dataclass(frozen=True)
class SplitBy(HeldOut):
    """How a silo's rows are split: drawn, unless columns give it."""

    group: str = option("", "of tables: the column whose values stay on one side of a split, such as a patient")
    time: str = option("", "of tables: the column of dates or numbers by which past rows train and the last ones test")
    split_column: str = option("", "of tables: the column that holds train, validation or test for each row")

    def __post_init__(self) -> None:
        if self.time and self.split_column:
            raise BadInput("time and split_column both set which rows test; give one of them")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are there for the split, so no features."""
        return tuple(name for name in (self.group, self.time, self.split_column) if name)


@dataclass(frozen=True, repr=False)
class Marks(HoldsData):
    """What is known of a silo's rows before they are split."""

    units: Indices | None = None  # (n,) rows of one group have one code
    times: Indices | None = None  # (n,) the place of their times in order; -1: none
    sides: Indices | None = None  # (n,) TRAIN, VALIDATION or TEST; -1: none

    def about(self) -> str:
        return ", ".join(name for name in ("units", "times", "sides") if getattr(self, name) is not None)

    def take(self, rows: Indices) -> "Marks":
        """Those of some rows."""
        return Marks(*(None if mark is None else mark[rows] for mark in (self.units, self.times, self.sides)))


def check_columns(by: SplitBy, label: str, aside: DataFrame, known: Sequence[str], where: str) -> None:
    """Refuse to split by a column that the silo lacks, or by its label."""
    for key, name in (("group", by.group), ("time", by.time), ("split-column", by.split_column)):
        if name and name == label:
            raise BadInput(f"--{key} {name}: is the label; give another column")
        if name and name not in aside:
            raise BadInput(f"{where}: has no column {name!r} for --{key}; {nearest(name, known)}")


def read_marks(columns: DataFrame, sides: Indices | None, by: SplitBy, where: str) -> Marks:
    """The marks of a silo's rows, `sides` where its files gave them; `columns` are those that are no features."""
    if sides is not None and (by.time or by.split_column):
        option = f"--time {by.time}" if by.time else f"--split-column {by.split_column}"
        raise BadInput(f"{where}: comes split; leave out {option}")
    units = read_groups(columns[by.group]) if by.group else None
    times = read_times(columns[by.time], f"{where} column {by.time!r}") if by.time else None
    if by.split_column:
        sides = read_sides(columns[by.split_column], f"{where} column {by.split_column!r}")
    return Marks(units, times, sides)


def check_marks(marks: Marks, rows: Indices, by: SplitBy, where: str) -> None:
    """Refuse rows without a time or a side, and a group on two sides; `rows` are their numbers in the table."""
    for mark, name, what, remedy in (
        (marks.times, by.time, "time", "add it"),
        (marks.sides, by.split_column, "value", "write train, validation or test"),
    ):
        if mark is not None and (mark < 0).any():
            row = rows[np.flatnonzero(mark < 0)[0]] + 1
            raise BadInput(f"{where} column {name!r}: no {what} in row {row}; {remedy} or leave the row out")
    if marks.units is not None and marks.sides is not None:
        pairs = np.unique(np.stack([marks.units, marks.sides]), axis=1)  # (2, ...) each group with each of its sides
        twice = int((np.bincount(pairs[0]) > 1).sum())
        if twice:
            raise BadInput(
                f"{where}: {twice} values of {by.group!r} are on two sides of its split; "
                "correct the split or leave out --group"
            )


def check_variety(marks: Marks, by: SplitBy, where: str) -> None:
    """Refuse fewer groups or times than there are parts of a split."""
    fewest = 2 + (by.validation > 0)
    times = None if marks.times is None else last_times(marks.times, marks.units)
    for mark, name, what in ((marks.units, by.group, "values"), (times, by.time, "times")):
        if mark is not None and (found := len(np.unique(mark))) < fewest:
            raise BadInput(
                f"{where}: column {name!r} has {found} different {what}; {fewest} or more are needed to train, "
                "validate and test; give another column or leave the silo out"
            )


def last_times(times: Indices, units: Indices | None) -> Indices:
    """(n,) of each row the last time of its group."""
    if units is None:
        return times
    last = np.full(units.max() + 1, -1)
    np.maximum.at(last, units, times)
    return last[units]


def read_groups(column: Series) -> Indices:
    """(n,) a code for each different value; a row without one is a group of its own."""
    codes: Indices = pd.factorize(_trimmed(column))[0].astype(np.int64)
    empty = codes < 0
    codes[empty] = codes.max(initial=-1) + 1 + np.arange(empty.sum())
    return codes


def read_times(column: Series, where: str) -> Indices:
    """(n,) the place of each row's time among all in order, from 0; -1 where there is none."""
    moments = column
    if column.dtype.kind not in "mM":
        text = _trimmed(column)
        moments = numbers_in(text)
        if moments.notna().sum() < text.notna().sum() / 2:
            moments = _dates(text, where)
        check_read(text, moments, where, "is neither a date nor a number as the others; correct it")
    places: Indices = pd.factorize(moments, sort=True)[0].astype(np.int64)
    return places


def read_sides(column: Series, where: str) -> Indices:
    """(n,) what each row is for; -1 where nothing is written."""
    text = _trimmed(column)
    found = text.str.lower().map(SIDES)
    check_read(text, found, where, f"is none of {', '.join(NAMES)}; correct it")
    sides: Indices = found.fillna(-1).to_numpy(dtype=np.int64)
    return sides


def _trimmed(column: Series) -> Series:
    text = column.map(str, na_action="ignore").astype(object).str.strip()
    return text.where(text != "", None)


def _dates(text: Series, where: str) -> Series:
    """As moments, NaT where a text is no date."""
    parts = text.str.extract(DAYS)
    first, mark, second, year, rest = (parts[i] for i in parts)
    slashed = mark == "/"
    day_first = bool((first[slashed].astype(int) > 12).any())
    if slashed.any() and not day_first and not (second[slashed].astype(int) > 12).any():
        a, b, y = (each[slashed].iloc[0] for each in (first, second, year))
        raise BadInput(
            f"{where}: is {a}/{b}/{y} day or month first? write dates as {y}-{int(b):02d}-{int(a):02d}, the year first"
        )
    backwards = ~slashed | day_first
    month, day = second.where(backwards, first), first.where(backwards, second)
    iso = (year + "-" + month + "-" + day + rest).where(mark.notna(), text)
    return pd.to_datetime(iso, format="ISO8601", utc=True, errors="coerce")
