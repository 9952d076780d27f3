"""What is odd in a silo's training rows: identifiers, copies of other columns, columns that tell the label alone."""

from hashlib import blake2b

import numpy as np
import pandas as pd
from pandas import Series

from coterie.data.own.fences import fence, within
from coterie.data.own.label import Label, Task
from coterie.data.silo import Array, Indices
from coterie.keys import generator

MOST = 10_000  # rows that are looked at
FEWEST = 20  # rows that show anything
RARE = 5  # rows outside the largest class, and rows of a level on average
WRONG = 0.001  # share of rows that a column may tell wrong
EXPLAINED = 0.999  # of the variance of a label that is a number
GIVEN_OUT = 1e5  # numbers of one length from here on are given out rather than counted


class Suspects:
    """Columns by name, as they are looked at one after another."""

    def __init__(self, label: Label, train: Indices, task: Task) -> None:
        # In a random order, so that rows sorted by label leave no trace where a column's values are equal.
        self.rows = generator(0, "suspects").permutation(train)[:MOST]
        self.classes = label.kind == "category" or label.levels(task) is not None
        values = label.values[self.rows]
        self.y: Array = np.unique(values, return_inverse=True)[1] if self.classes else values  # (rows,)
        self.identifiers = list[str]()
        self.copies = dict[str, str]()
        self.telling = list[str]()
        self._first = dict[bytes, str]()

    def number(self, name: str, values: Array, counted: bool = True) -> None:
        """A column of numbers (n,), of all rows; one that is not `counted` is of dates."""
        self._compare(name, values[np.sort(self.rows)])
        if counted and _identifies(values[np.sort(self.rows)]):
            self.identifiers.append(name)
        if self._judged() and (self._sorts if self.classes else self._explains)(values[self.rows]):
            self.telling.append(name)

    def category(self, name: str, text: Series) -> None:
        """A column of text (n,), of all rows."""
        codes, levels = pd.factorize(text.iloc[np.sort(self.rows)])
        self._compare(name, codes)
        if self._judged() and self.classes and self._maps(codes, len(levels)):
            self.telling.append(name)

    def _compare(self, name: str, values: Array) -> None:
        """Note the first column that has these values too."""
        digest = blake2b(np.ascontiguousarray(values).tobytes() + values.dtype.char.encode()).digest()
        if self._first.setdefault(digest, name) != name and len(values) >= FEWEST and len(np.unique(values)) > 1:
            self.copies[name] = self._first[digest]

    def _judged(self) -> bool:
        """Whether the labels are such that chance tells none of them by a column."""
        if len(self.y) < FEWEST:
            return False
        return not self.classes or len(self.y) - int(np.bincount(self.y).max()) >= RARE

    def _sorts(self, values: Array) -> bool:
        """Whether rows that are sorted by it (n,) are sorted by class, too."""
        changes = np.count_nonzero(np.diff(self.y[np.argsort(values, kind="stable")]))
        return bool(changes - int(self.y.max()) <= 2 * WRONG * len(values))

    def _explains(self, values: Array) -> bool:
        """Whether the label is a straight line of it."""
        there = ~np.isnan(values)
        x, y = (within(each, fence(each)) for each in (values[there], self.y[there]))
        if len(x) < FEWEST or x.min() == x.max() or y.min() == y.max():
            return False
        return bool(np.corrcoef(x, y)[0, 1] ** 2 >= EXPLAINED)

    def _maps(self, codes: Indices, levels: int) -> bool:
        """Whether each level has one class."""
        y = self.y[np.argsort(self.rows)]
        if len(y) < RARE * (levels + 1):
            return False
        counts = np.zeros((levels + 1, int(y.max()) + 1), int)
        np.add.at(counts, (codes, y), 1)  # a missing value, -1, is the last level
        return bool(len(y) - counts.max(1).sum() <= WRONG * len(y))


def _identifies(values: Array) -> bool:
    """Whether numbers (n,) in the order of the file are whole, another in each row, and not by chance."""
    if len(values) < FEWEST or not (values == np.round(values)).all():
        return False
    if (np.diff(values) > 0).all():
        return True
    ordered = np.sort(values)
    if (np.diff(ordered) == 0).any():
        return False
    low, high = ordered[0], ordered[-1]
    dense = len(values) ** 2 > 6 * (high - low)  # so many numbers of a range would meet
    return bool(dense or (low >= GIVEN_OUT and high < 10 * low))
