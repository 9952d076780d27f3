"""What the silos agreed on: how a raw row becomes numbers, and what a model's outputs mean."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pandas import DataFrame, Series

from coterie.data.own.columns import EPOCH, as_days, as_number, as_text
from coterie.data.own.fences import Fence, within
from coterie.data.own.hashed_text import WIDTH, hashed
from coterie.data.silo import Array
from coterie.errors import BadInput
from coterie.options import option, parse

FAR = float(np.finfo(np.float32).max)
YEAR = 365.2425  # days
CALENDAR = 3_000_000  # days before and after 2000 that have a date
DATE = 11  # inputs of a date: days, year, sine and cosine of the month, seven weekdays


@dataclass(frozen=True)
class Column:
    """One column of a table, and what it becomes: standardised numbers, a 0 or 1 for each level, or hashed words."""

    name: str
    kind: Literal["number", "category", "date", "text"] = "number"
    mean: float = 0.0  # of dates in days since 2000, as scale and fence
    scale: float = option(1.0, "standard deviation", above=0)
    indicator: bool = False  # of numbers and dates: whether a last input is 1 where the value is missing
    levels: tuple[str, ...] = dataclasses.field(default=(), repr=False)  # texts of rows
    fence: Fence = ()  # of numbers and dates: beyond it this silo's are pulled in

    def encode(self, values: Series, where: str, into: Array) -> None:
        """Fill `into` (n, width), of zeros; a level that no silo declared is all zeros, a missing number the mean."""
        if self.kind == "category":
            place = {level: i for i, level in enumerate(self.levels)}
            codes = as_text(values, where).map(place).to_numpy(dtype=np.float64, na_value=-1)
            for i in range(len(self.levels)):
                into[:, i] = codes == i
            return
        if self.kind == "text":
            return hashed(as_text(values, where), into)
        read = as_days if self.kind == "date" else as_number
        raw = within(read(values, where), self.fence)
        there = ~np.isnan(raw)
        into[:, 0] = np.where(there, standard(raw, self.mean, self.scale), 0.0)
        if self.kind == "date":
            into[there, 1:DATE] = self._calendar(raw[there])
        if self.indicator:
            into[:, -1] = ~there

    def _calendar(self, days: Array) -> Array:
        """(n, 10) year, month and weekday: months as a circle, where December is next to January and a silo need not
        have seen them all; weekdays one by one, because a Sunday is no more of a Saturday than of a Monday."""
        day = EPOCH + np.clip(days, -CALENDAR, CALENDAR).astype("timedelta64[D]")
        year = 1970 + day.astype("datetime64[Y]").astype(int)
        turn = 2 * np.pi * (day.astype("datetime64[M]").astype(int) % 12) / 12
        made = np.zeros((len(days), DATE - 1), np.float32)
        made[:, 0] = standard(year, 2000 + self.mean / YEAR, max(self.scale / YEAR, 1.0))
        made[:, 1], made[:, 2] = np.sin(turn), np.cos(turn)
        made[np.arange(len(days)), 3 + (day.astype(int) + 3) % 7] = 1  # day 0 was a Thursday
        return made

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        if self.kind == "category":
            return len(self.levels)
        if self.kind == "text":
            return WIDTH
        return (DATE if self.kind == "date" else 1) + self.indicator


def standard(values: Array, mean: float, scale: float) -> Array:
    """Standardised; a value far beyond any trained on is as far as an input or a target goes, and none is refused."""
    with np.errstate(over="ignore"):
        made: Array = np.clip((values - mean) / scale, -FAR, FAR)
    return made


@dataclass(frozen=True)
class Schema:
    """Of one silo; silos differ in their fences and, where each standardises by itself, in `mean` and `scale`."""

    label: str = ""
    classes: tuple[str, ...] = ()  # empty: the label is a number
    centre: float = 0.0  # of a label that is a number
    unit: float = option(1.0, "its deviation, as that of the middle silo", above=0)
    columns: tuple[Column, ...] = ()  # empty: samples are arrays and taken as they are
    shape: tuple[int, ...] = ()  # of a sample
    resize: int = option(0, "height and width in pixels that pictures are brought to; 0: as they are", low=0)

    def encode(self, frame: DataFrame, where: str) -> Array:
        """A table's rows as a model takes them: (n, inputs)."""
        absent = [column.name for column in self.columns if column.name not in frame.columns]
        if absent:
            raise BadInput(f"{where}: column {absent[0]!r} is missing; the model was trained with it")
        made = np.zeros((len(frame), sum(column.width for column in self.columns)), np.float32)
        start = 0
        for column in self.columns:
            end = start + column.width
            column.encode(frame[column.name], f"{where} column {column.name!r}", made[:, start:end])
            start = end
        return made

    def as_table(self) -> dict[str, Any]:
        """As plain values, which `read` takes back."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str) -> "Schema":
        """From plain values, checked."""
        schema = parse(cls, table, where)
        for column in schema.columns:
            parse(Column, dataclasses.asdict(column), f"{where} column {column.name!r}")
            if len(column.fence) not in (0, 2) or [*column.fence] != sorted(column.fence):
                raise BadInput(f"{where} column {column.name!r}: {column.fence} are no two bounds; it is damaged")
        if schema.columns and schema.shape != (sum(column.width for column in schema.columns),):
            raise BadInput(f"{where}: its columns do not make samples of shape {schema.shape}; it is damaged")
        if schema.resize and schema.shape[1:] != (schema.resize, schema.resize):
            raise BadInput(f"{where}: pictures of {schema.resize} pixels make no samples {schema.shape}; it is damaged")
        return schema
