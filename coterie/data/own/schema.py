"""What the silos agreed on: how a raw row becomes numbers, and what a model's outputs mean."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pandas import DataFrame, Series

from coterie.data.own.columns import as_number, as_text
from coterie.data.own.fences import Fence, within
from coterie.data.silo import Array
from coterie.errors import BadInput
from coterie.options import option, parse

FAR = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Column:
    """One column of a table, and what it becomes: a standardised number, or a 0 or 1 for each level."""

    name: str
    kind: Literal["number", "category"] = "number"
    mean: float = 0.0
    scale: float = option(1.0, "standard deviation", above=0)
    indicator: bool = False  # of numbers: whether a second input says that the value is missing
    levels: tuple[str, ...] = dataclasses.field(default=(), repr=False)  # texts of rows
    fence: Fence = ()  # of numbers: beyond it this silo's are pulled in

    def encode(self, values: Series, where: str, into: Array) -> None:
        """Fill `into` (n, width); a level that no silo declared is all zeros, a missing number is the mean."""
        if self.kind == "category":
            place = {level: i for i, level in enumerate(self.levels)}
            codes = as_text(values, where).map(place).to_numpy(dtype=np.float64, na_value=-1)
            for i in range(len(self.levels)):
                into[:, i] = codes == i
            return
        raw = within(as_number(values, where), self.fence)
        with np.errstate(over="ignore"):  # of a row to predict, far beyond any trained on: as far as an input goes
            into[:, 0] = np.nan_to_num(np.clip((raw - self.mean) / self.scale, -FAR, FAR), nan=0.0)
        if self.indicator:
            into[:, 1] = np.isnan(raw)

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return len(self.levels) if self.kind == "category" else 1 + self.indicator


@dataclass(frozen=True)
class Schema:
    """Of one silo; silos differ in their fences and, where each standardises by itself, in `mean` and `scale`."""

    label: str = ""
    classes: tuple[str, ...] = ()  # empty: the label is a number
    centre: float = 0.0  # of a label that is a number
    unit: float = option(1.0, "its deviation, as that of the middle silo", above=0)
    columns: tuple[Column, ...] = ()  # empty: samples are arrays and taken as they are
    shape: tuple[int, ...] = ()  # of a sample

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
        return schema
