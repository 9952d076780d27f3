"""How far a silo's number may lie from its others: one beyond is pulled in, so that no slip of a key ruins them all."""

import math

import numpy as np

from coterie.data.silo import Array

FEWEST = 10  # values that tell what is usual
TAIL = 0.05  # of the values on either side that have no say in it
REACH = 5.0  # widths of the rest from the median, beyond which a value is no such value

Fence = tuple[float, ...]  # what no value may lie below and above; or nothing: all are taken as they are


def fence(values: Array) -> Fence:
    """The fence of a column, from the values of its training rows (n,).

    Of a number of nines at an end that many rows have, and that lies beyond the fence of all others, nothing is taken:
    it is no number but a sign, as -999 for a value that is missing.
    """
    there = values[~np.isnan(values)]
    for end in (there.min(), there.max()) if len(there) else ():
        rest = there[there != end]
        bounds = _fence(rest) if _of_nines(end) and len(rest) > len(there) / 2 else ()
        there = rest if bounds and not bounds[0] <= end <= bounds[1] else there
    return _fence(there)


def _of_nines(value: float) -> bool:
    """Whether a number is 99, -999, 9999 and so on."""
    return 99 <= abs(value) <= 1e12 and set(f"{abs(value):.0f}") == {"9"} and value == int(value)


def _fence(there: Array) -> Fence:
    if len(there) < FEWEST:
        return ()
    centre = float(np.median(there))
    low, high = _bulk(there)
    if low == high:  # mostly one value, as of zeros and a few counts: the others say how far they go
        others = there[there != centre]
        if len(others) < FEWEST:
            return ()
        low, high = _bulk(others)
        low, high = min(low, centre), max(high, centre)
    return centre - REACH * (high - low), centre + REACH * (high - low)


def within(values: Array, bounds: Fence) -> Array:
    """The values (n,), those beyond the fence taken as one width from the median.

    At the fence one would still rule a batch, and by fedavg the other silos: their rmse rose by up to a quarter.
    """
    if not bounds:
        return values
    low, high = nearer(bounds)
    return np.where(beyond(values, bounds), np.clip(values, low, high), values)


def nearer(bounds: Fence) -> Fence:
    """What values beyond a fence are taken as, below and above."""
    centre, width = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2 / REACH
    return centre - width, centre + width


def beyond(values: Array, bounds: Fence) -> Array:
    """Which of the values (n,) lie beyond the fence."""
    return (values < bounds[0]) | (values > bounds[1]) if bounds else np.zeros(len(values), bool)


def _bulk(values: Array) -> tuple[float, float]:
    """The 5% and the 95% quantile of the values; an extreme one never counts, however few there are."""
    out = max(1, math.ceil(TAIL * (len(values) - 1)))
    ends = np.partition(values, (out, len(values) - 1 - out))
    return float(ends[out]), float(ends[-1 - out])
