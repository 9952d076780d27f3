"""Estimates of several silos taken together: their mean, how far apart they truly are, and each drawn towards all."""

from collections.abc import Sequence

import numpy as np

from coterie.measure.distributions import normal_quantile
from coterie.measure.measures import Array
from coterie.measure.paired import LEVEL, Estimate


def from_errors(value: float, error: float) -> Estimate:
    reach = normal_quantile((1 + LEVEL) / 2) * error
    return Estimate(value, value - reach, value + reach, error)


MANY, FEW = 20, 30  # so many silos' spread says what so few rows of each do not


def mean_of(parts: Sequence[Estimate], rows: Sequence[int] | None = None) -> Estimate:
    """The mean of these silos' values, whose rows are different ones: no other silos are meant.

    By their rows or, of many silos of few, by their spread, which holds all that rows may do: what the few rows of each
    cannot exclude would add up. `rows` are how many each has, where its degrees of freedom do not say so.
    """
    count = len(parts)
    if count >= MANY and np.mean([part.freedom for part in parts] if rows is None else rows) < FEW:
        by_spread = of_silos(np.array([part.value for part in parts]))
        if np.isfinite(by_spread.error):
            return by_spread
    value, centre = (float(np.mean(each)) for each in ([p.value for p in parts], [(p.low + p.high) / 2 for p in parts]))
    error = float(np.sqrt(sum(p.error**2 for p in parts)) / count)
    # Welch and Satterthwaite's degrees of freedom.
    below = sum((p.error / count) ** 4 / p.freedom for p in parts)
    return Estimate.around(value, error, error**4 / below if below > 0 else np.inf, centre)


def of_silos(values: Array) -> Estimate:
    """The mean over silos of which nothing but their scores is known, as a draw from silos like them."""
    if len(np.unique(values)) < 2:  # one value, or several that are alike: nothing is known of the next silo's
        return Estimate(float(values.mean()), -np.inf, np.inf, np.inf)
    return Estimate.around(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), len(values) - 1)


def over(parts: Sequence[Estimate]) -> Estimate:
    """The mean of these silos' values by their rows, or by their spread where some have too few rows for an error."""
    if all(np.isfinite(part.error) for part in parts):
        return mean_of(parts)
    return of_silos(np.array([part.value for part in parts]))


def between(values: Array, errors: Array) -> float:
    """Paule and Mandel's variance of the true gains between silos."""
    if len(values) < 2 or not errors.any():
        return float(np.var(values, ddof=1)) if len(values) > 1 else 0.0
    errors = np.maximum(errors, 1e-6 * errors.max())  # 0 where two methods give the same for every row

    def surplus(tau: float) -> float:
        weights = 1 / (errors**2 + tau)
        centre = (weights * values).sum() / weights.sum()
        return float((weights * (values - centre) ** 2).sum() - (len(values) - 1))

    if surplus(0.0) <= 0:
        return 0.0
    from scipy.optimize import brentq

    return float(brentq(surplus, 0.0, 10 * float(np.var(values)) + float(errors.max()) ** 2 + 1e-12))


def shrunken(gains: Sequence[Estimate]) -> list[Estimate]:
    """Each silo's gain drawn towards that of all, the more the less its own rows say."""
    nothing = Estimate(np.nan, np.nan, np.nan, np.inf)
    known = [i for i, gain in enumerate(gains) if 0 < gain.error < np.inf]
    if len(known) < 3:
        return [nothing] * len(gains)
    values = np.array([(gains[i].low + gains[i].high) / 2 for i in known])
    errors = np.array([gains[i].error for i in known])
    tau = between(values, errors)
    weights = 1 / (errors**2 + tau)
    centre, of_centre = (weights * values).sum() / weights.sum(), 1 / weights.sum()
    found = [nothing] * len(gains)
    for i, value, error in zip(known, values, errors, strict=True):
        own = tau / (tau + error**2)
        spread = np.sqrt(own * error**2 + (1 - own) ** 2 * of_centre)
        found[i] = from_errors(float(own * value + (1 - own) * centre), float(spread))
    return found
