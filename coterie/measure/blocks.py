"""Do silos learn from their own kind? How much of what a silo takes from others it takes from its own group."""

import numpy as np

from coterie.measure.measures import Array


def within_group(collaboration: Array, groups: Array) -> Array:
    """The share of each row's off-diagonal weight that lies on its own group: (m,) of (m, m) and (m,).

    Weights count by their size, since those of some methods may be negative. NaN for a silo that takes from nobody.
    """
    others = np.abs(collaboration) * ~np.eye(len(groups), dtype=bool)
    total, own = others.sum(1), (others * (groups[:, None] == groups)).sum(1)
    return np.asarray(np.divide(own, total, out=np.full(len(groups), np.nan), where=total > 0))


def block_scores(collaboration: Array, groups: Array) -> dict[str, float]:
    """Mean over silos and least of them, in percent; nothing where there are no groups or nobody takes from another."""
    if len(np.unique(groups)) < 2 or collaboration.shape != (len(groups), len(groups)):
        return {}
    shares = 100 * within_group(collaboration, groups)
    shares = shares[~np.isnan(shares)]
    return {"within_group": float(shares.mean()), "within_group_least": float(shares.min())} if len(shares) else {}
