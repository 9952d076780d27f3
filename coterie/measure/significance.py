"""Is one method better than another over the silos, or was it chance?"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pandas import DataFrame

from coterie.errors import BadInput
from coterie.measure.measures import Array

ALPHA = 0.05  # the level of significance
EXACT = 50  # silos up to which every sign is counted; of more the statistic is normal


def compare(per_silo: Mapping[str, Mapping[str, float]]) -> DataFrame:
    """Every pair of methods over the silos both have: Wilcoxon signed-rank p, and p after Holm over all pairs.

    `per_silo[method][silo]` is a score; `mean_difference` is that of `method` minus that of `other`.
    """
    rows = []
    for method, other in itertools.combinations(per_silo, 2):
        silos = [silo for silo in per_silo[method] if silo in per_silo[other]]
        if not silos:
            raise BadInput(f"'{method}' and '{other}' have no silo in common to compare")
        pairs = [(per_silo[method][silo], per_silo[other][silo]) for silo in silos]
        difference = np.array([0.0 if a == b else a - b for a, b in pairs])  # two losses may both be infinite
        rows.append((method, other, len(silos), float(difference.mean()), signed_rank(difference)))
    table = DataFrame(rows, columns=["method", "other", "silos", "mean_difference", "p"])
    return table.assign(p_holm=holm(table["p"].to_numpy(dtype=float)))


def beside(pairs: Sequence[Mapping[str, Any]], reference: str, lower_better: bool) -> dict[str, int]:
    """Of every method that differs significantly from a reference: 1 if it is better, -1 if it is worse."""
    found = {}
    for pair in pairs:
        if reference in (pair["method"], pair["other"]) and pair["p_holm"] < ALPHA:
            other = pair["other"] if pair["method"] == reference else pair["method"]
            lead = pair["mean_difference"] if pair["other"] == reference else -pair["mean_difference"]
            found[other] = 1 if (lead < 0) == lower_better else -1
    return found


def signed_rank(differences: Array) -> float:
    """The two-sided Wilcoxon signed-rank p; 1 when nothing differs."""
    # Means over seeds leave noise in the last bits that would otherwise be ranked as a difference or break a tie.
    rounded = np.round(differences, 9)
    if len(rounded) > EXACT:
        from scipy.stats import wilcoxon

        return float(wilcoxon(rounded).pvalue) if rounded.any() else 1.0
    rounded = rounded[rounded != 0]
    sizes = np.abs(rounded)
    order = np.sort(sizes)
    # Equal ones share a rank that may end in a half: doubled, all are whole.
    ranks = np.searchsorted(order, sizes) + np.searchsorted(order, sizes, side="right") + 1
    ways = np.ones(1)  # of all 2^n signs, how many give each sum of positive ranks
    for rank in ranks:
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    found = int(ranks[rounded > 0].sum())
    tail = min(ways[: found + 1].sum(), ways[found:].sum()) / ways.sum()
    return min(1.0, 2 * float(tail))


def smallest_p(silos: int) -> float:
    """What `signed_rank` gives when one method is ahead in every silo."""
    return min(1.0, 2.0 ** (1 - silos))


def holm(p: Array) -> Array:
    """Holm's step-down correction, in the order given."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def benjamini_hochberg(p: Array) -> Array:
    """Adjusted so that of all that stay below a level that share is wrong at most, in the order given."""
    order = np.argsort(p, kind="stable")
    stepped = p[order] * len(p) / np.arange(1, len(p) + 1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.minimum.accumulate(stepped[::-1])[::-1], 1.0)
    return adjusted
