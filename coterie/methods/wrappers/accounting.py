"""ε of what left a silo, by Google's dp-accounting, and the noise that keeps within an ε.

A mechanism is a Gaussian one on a Poisson sample: q, the chance that a record is in it (1: it always is), and the ratio
of the noise to how far one silo's data, or one record, can move the result.
"""

import math
from collections.abc import Mapping
from functools import lru_cache

from coterie.measure.gaussian import gaussian_epsilon

Mechanism = tuple[float, float]  # q, and the ratio of noise to sensitivity
CLOSE = 2e-3  # how far, as a share, noise that is found may lie above the least that would do
APART = 0.05  # how far, as a share, the first guess may well be from it
SMALLEST = -1.5  # the logarithm of the smallest guess: its ε is in the hundreds
MOST = 500.0  # about the largest ε that is added up exactly: a larger one takes minutes or 110 GiB, and says nothing
VAST = 1e6  # more noise than this counts as this


def composed(mechanisms: Mapping[Mechanism, int], delta: float) -> float:
    """ε of so many uses of each mechanism together."""
    return _composed(frozenset(mechanisms.items()), delta)


@lru_cache(maxsize=4096)
def _composed(mechanisms: frozenset[tuple[Mechanism, int]], delta: float) -> float:
    if any(ratio == 0 for (_, ratio), _ in mechanisms):
        return math.inf
    if sum(times * _about_one(q, ratio) for (q, ratio), times in mechanisms) > MOST:
        known = all(q == 1 and ratio > 1 / VAST for (q, ratio), _ in mechanisms)
        return (
            gaussian_epsilon(sum(times * ratio**-2 for (_, ratio), times in mechanisms), delta) if known else math.inf
        )
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    # As a ratio of noise to sensitivity, since dp-accounting's accountants differ in whether replacing doubles it.
    # Losses are rounded up to a grid: a coarse one is five times faster, and adds up over many uses.
    few = sum(times for _, times in mechanisms) <= 5000
    accountant = PLDAccountant(value_discretization_interval=5e-4 if few else 1e-4)
    for (q, ratio), times in sorted(mechanisms):
        one = GaussianDpEvent(min(ratio, VAST))
        accountant.compose(one if q == 1 else PoissonSampledDpEvent(q, one), times)
    return float(accountant.get_epsilon(delta))


def _about_one(q: float, ratio: float) -> float:
    """About what one use adds to ε: its Rényi divergence of order 2 (Mironov, Talwar and Zhang, 2019) or, of samples
    with little noise, how often a record is in one times what it then loses."""
    squares = max(ratio, 1 / VAST) ** -2
    return min(q * squares, math.log1p(q * q * math.expm1(min(squares, 600.0))))


@lru_cache(maxsize=4096)
def noise_for(epsilon: float, delta: float, q: float, times: int) -> float:
    """The least ratio of noise to sensitivity with which so many uses of a mechanism keep within ε, nearly."""

    from scipy.optimize import brentq

    def excess(log_ratio: float) -> float:
        return composed({(q, math.exp(log_ratio)): times}, delta) - epsilon

    low = _about(epsilon, delta, q, times) - APART
    high = low + 2 * APART
    while excess(high) > 0:
        low, high = high, high + 2 * APART
    while excess(low) < 0:
        low, high = low - 2 * APART, low
    return math.exp(float(brentq(excess, low, high, xtol=CLOSE / 2)) + CLOSE / 2)


def _about(epsilon: float, delta: float, q: float, times: int) -> float:
    """The logarithm of about that ratio, by the central limit theorem for privacy.

    Bu, Dong, Long and Su, "Deep Learning with Gaussian Differential Privacy", 2020: many sampled mechanisms are about
    one Gaussian with μ² = q² T (exp(1/σ²) − 1).
    """
    from scipy.optimize import brentq

    def excess(log_ratio: float) -> float:
        squares = q * q * times * math.expm1(math.exp(-2 * log_ratio))
        return gaussian_epsilon(squares, delta) - epsilon

    return float(brentq(excess, SMALLEST, 50.0, xtol=CLOSE))
