"""Two models on the same test rows of one silo: how much better is the one, and what do so few rows allow to say?

A measure is taken to first order in its rows: each moves it by its influence (Efron's infinitesimal jackknife; of AUROC
these are DeLong's components). A difference of two models on the same rows then is a mean of paired differences, whose
interval is Student's. Rows of one unit (a patient) and the same row in several seeds count as one.

To the rows of a measure that has bounds two are added, one won and one lost by as much as any (Bonett and Price, 2012,
for proportions): without them two rows on which both models agree would make them certainly alike, and six that are all
won certainly better.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.measure.distributions import student_below, student_quantile
from coterie.measure.measures import Array, Measure

LEVEL = 0.95
BLOCKS = 40  # left out one by one, of a measure whose influence is not known
FEWEST = 8  # rows of which an unbounded measure's interval is reported


@dataclass(frozen=True)
class Estimate:
    """A value and its interval; `error` is its standard error, inf where the rows say nothing."""

    value: float
    low: float
    high: float
    error: float = 0.0
    freedom: float = np.inf  # degrees of it

    @classmethod
    def around(cls, value: float, error: float, freedom: float, centre: float | None = None) -> "Estimate":
        """With Student's interval, around the value or another centre."""
        reach, middle = student_quantile((1 + LEVEL) / 2, freedom) * error, value if centre is None else centre
        return cls(value, middle - reach, middle + reach, error, freedom)

    @property
    def p(self) -> float:
        """Two-sided, that the truth is zero."""
        centre = (self.low + self.high) / 2
        if not np.isfinite(self.error):
            return 1.0
        return 2 * student_below(-abs(centre) / self.error, self.freedom) if self.error else float(centre == 0)

    def within(self, margin: float, level: float) -> bool:
        """Whether both one-sided tests say that it is nearer to zero than the margin."""
        if not np.isfinite(self.error):
            return False
        reach = student_quantile(1 - level, self.freedom) * self.error
        centre = (self.low + self.high) / 2
        return bool(abs(centre) + reach < margin)


@dataclass(frozen=True)
class Scored:
    """One model on one silo's rows."""

    value: float
    units: Array  # (n,) which rows count as one
    moved: Array  # (n,) by how much each row moves the value
    sides: Array  # (n,) which part of the measure a row is in: its class, where the measure goes by class


def scored(measure: Measure, y: Array, p: Array, units: Array | None = None) -> Scored:
    """A model's value on a silo's rows, and how each row moves it."""
    units, sides = np.arange(len(y)) if units is None else units, y if measure.by_class else np.zeros(len(y), dtype=int)
    value = measure.of(y, p) if len(y) else np.nan
    if not np.isfinite(value):
        return Scored(value, units, np.zeros(len(y)), sides)
    moved = measure.influence(y, p) if measure.influence else _jackknife(measure, y, p, units)
    return Scored(value, units, moved / len(y), sides)


def difference(measure: Measure, own: Sequence[Scored], other: Sequence[Scored]) -> Estimate:
    """By how much one model is better than another, mean over seeds; both on the same rows of each seed."""
    pairs = [
        Scored(measure.better(a.value, b.value), a.units, a.moved - b.moved, a.sides)
        for a, b in zip(own, other, strict=True)
    ]
    return _estimate(measure, pairs, shrinks=measure.row is not None)


def interval(measure: Measure, own: Sequence[Scored]) -> Estimate:
    """A model's own value, mean over seeds."""
    found = _estimate(measure, own)
    if measure.row is None:
        return found
    low = -1.0 if measure.kind == "numbers" else 0.0  # of a correlation
    return Estimate(found.value, max(found.low, low), min(found.high, 1.0), found.error, found.freedom)


def _estimate(measure: Measure, seeds: Sequence[Scored], shrinks: bool = False) -> Estimate:
    values = [each.value for each in seeds]
    value = float(np.mean(values))
    if not np.isfinite(values).all():
        return Estimate(value, np.nan, np.nan, np.inf)
    _, place = np.unique(np.concatenate([each.units for each in seeds]), return_inverse=True)
    by_unit = np.bincount(place, np.concatenate([each.moved for each in seeds]) / len(seeds))
    known = min(len(np.unique(each.units[each.sides == side])) for each in seeds for side in np.unique(each.sides))
    if len(by_unit) < 2 or (measure.row is None and known < FEWEST):
        return Estimate(value, -np.inf, np.inf, np.inf)
    variance = float((by_unit**2).sum()) * len(by_unit) / (len(by_unit) - 1)
    if measure.row is not None:
        variance += float(np.mean([_added(measure.row, each) for each in seeds]))
    if len(seeds) > 1:  # what training adds to the chance of the rows
        of_rows = np.mean([float((each.moved**2).sum()) for each in seeds])
        variance += max(0.0, float(np.var(values, ddof=1)) - float(of_rows)) / len(seeds)
    error, freedom = float(np.sqrt(variance)), max(known - 1, 1)
    return Estimate.around(value, error, freedom, value * (1 - 2 / (known + 2)) if shrinks else value)


def _added(row: float, each: Scored) -> float:
    """The variance of the two rows that are added to each side."""
    sides, found = np.unique(each.sides), 0.0
    weight = 2 / len(sides) if len(sides) > 1 else 1.0  # AUROC moves with both of two classes, a mean by their shares
    for side in sides:
        mine = each.sides == side
        by_unit = np.bincount(np.unique(each.units[mine], return_inverse=True)[1], each.moved[mine])
        most = float(np.abs(by_unit).max()) * len(by_unit) / weight
        found += 2 * (weight * max(row, most) / (len(by_unit) + 2)) ** 2
    return found


def _jackknife(measure: Measure, y: Array, p: Array, units: Array) -> Array:
    """The influence of rows by leaving out blocks of whole units; a block's units share it."""
    _, unit, rows = np.unique(units, return_inverse=True, return_counts=True)
    blocks = np.array_split(np.random.default_rng(0).permutation(len(rows)), min(BLOCKS, len(rows)))
    parts = [np.isin(unit, block) for block in blocks]
    left = [measure.of(y[~part], p[~part]) if not part.all() else np.nan for part in parts]
    found = np.nan_to_num(np.array(left) - np.nanmean(left) if np.isfinite(left).any() else np.zeros(len(left)))
    moved = np.zeros(len(y))
    for block, part, change in zip(blocks, parts, found, strict=True):
        # Spread over a block's units so that their squares add up to its part of the jackknife's variance.
        spread = -change * len(y) * np.sqrt((len(blocks) - 1) / (len(blocks) * len(block)))
        moved[part] = spread / rows[unit[part]]
    return moved
