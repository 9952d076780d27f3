"""The label of a silo: classes or numbers, for its silo alone to read and for all to agree on."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pandas import Series

from coterie.data.own.columns import as_number, as_text, kind_of, number_name
from coterie.data.silo import Array, HoldsData
from coterie.errors import BadInput

CLASSES = 20  # more different whole numbers than this are a quantity
LARGEST = 1000  # classes that are named

Task = Literal["auto", "classification", "regression"]


@dataclass(frozen=True, repr=False)
class Label(HoldsData):
    """The labels of a silo's rows, none missing."""

    kind: Literal["number", "category"]
    values: Array  # (n,) float64, or text

    def about(self) -> str:
        return f"{len(self.values)} of kind {self.kind}"

    def names(self) -> Array:
        """(n,) as names of classes; 1 and 1.0 are one."""
        if self.kind == "category":
            return self.values
        return np.array([number_name(value) for value in self.values.tolist()], dtype=object)

    def levels(self, task: Task) -> tuple[str, ...] | None:
        """The classes of this silo; None where its labels can only be a quantity."""
        if task == "regression" or (task == "auto" and self.kind == "number" and not self._few()):
            return None
        found = np.unique(self.values)
        if len(found) > LARGEST:
            raise BadInput(
                f"the label has {len(found)} different values, too many for classes; is it a number to tell?"
            )
        return tuple(ordered({str(name) for name in self.names()}))

    def _few(self) -> bool:
        return bool((self.values == np.round(self.values)).all()) and len(np.unique(self.values)) <= CLASSES

    def take(self, rows: Array) -> "Label":
        """The labels of some rows."""
        return Label(self.kind, self.values[rows])


def read_label(column: Series, where: str) -> tuple[Label, Array]:
    """The labels that are there, and where (n,)."""
    kind = kind_of(column, where)
    if kind == "empty":
        raise BadInput(f"{where}: no row has a label; add labels or leave the file out")
    if kind == "date":
        raise BadInput(f"{where}: holds dates; the label must be classes or numbers")
    values = as_number(column, where) if kind == "number" else as_text(column, where).to_numpy(dtype=object)
    there = column.notna().to_numpy() & np.array([value == value and value is not None for value in values])
    kept = values[there]
    return Label(kind, kept if kind == "number" else kept.astype(object)), there


def ordered(names: set[str]) -> list[str]:
    """Classes in an order that does not depend on who has which: numbers by value, then text by the alphabet."""
    return sorted(names, key=by_value)


def by_value(name: object) -> tuple[int, float, str]:
    """The key of an order with 2 before 10, and names after numbers."""
    text = str(name)
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)
