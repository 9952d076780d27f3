"""Two models on the same test samples of one silo: how much better is the one, and may that be chance?"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest, fisher_exact, ttest_1samp

Array = np.ndarray[Any, Any]
DRAWS = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and its bootstrap interval."""

    value: float
    low: float
    high: float


def bootstrap(samples: list[Array], rng: np.random.Generator) -> Estimate:
    """The mean over samples, drawing them anew; `samples` has one array for each seed.

    A sample that has the same place in several seeds may be the same one: such are drawn together.
    """
    sums, counts = _by_place(samples)
    if not np.isfinite(sums).all():
        return Estimate(np.inf, np.inf, np.inf)
    kinds, times = np.unique(np.stack([sums, counts], 1), axis=0, return_counts=True)  # right or wrong: two kinds
    drawn = rng.multinomial(len(sums), times / len(sums), size=DRAWS) @ kinds
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(sums.sum() / counts.sum()), float(low), float(high))


def p_value(differences: list[Array]) -> float:
    """The two-sided p of paired differences: McNemar's exact test of right and wrong, else a paired t test."""
    if len(differences) == 1 and np.isin(differences[0], (-1, 0, 1)).all():
        won, lost = int((differences[0] > 0).sum()), int((differences[0] < 0).sum())
        return 1.0 if won + lost == 0 else float(binomtest(won, won + lost).pvalue)
    sums, counts = _by_place(differences)
    if not np.isfinite(sums).all():
        return 1.0
    means = sums / counts
    if len(means) < 2 or not means.any():
        return 1.0
    return 0.0 if np.ptp(means) == 0 else float(ttest_1samp(means, 0).pvalue)


def from_counts(score: float, alone: float, count: int, rng: np.random.Generator) -> tuple[Estimate, Estimate, float]:
    """The same of two accuracies on so many samples, of which no more is known: unpaired, so less is found."""
    redrawn = [rng.binomial(count, min(max(share, 0.0), 1.0), DRAWS) / count for share in (score, alone)]
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    own, difference = (np.quantile(draws, tails) for draws in (redrawn[0], redrawn[0] - redrawn[1]))
    hits = [round(share * count) for share in (score, alone)]
    p = float(fisher_exact([[hits[0], count - hits[0]], [hits[1], count - hits[1]]]).pvalue)
    return (
        Estimate(score, float(own[0]), float(own[1])),
        Estimate(score - alone, float(difference[0]), float(difference[1])),
        p,
    )


def _by_place(samples: list[Array]) -> tuple[Array, Array]:
    """Sums and counts over seeds of the samples at the same place."""
    longest = max(len(each) for each in samples)
    sums, counts = np.zeros(longest), np.zeros(longest)
    for each in samples:
        sums[: len(each)] += each
        counts[: len(each)] += 1
    return sums, counts
