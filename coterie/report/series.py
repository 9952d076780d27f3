"""The numbers behind the figures, the same for the page and for files."""

import numpy as np
from pandas import DataFrame

from coterie.data.own.label import by_value
from coterie.measure.metrics import by_round


def curve(results: DataFrame, method: str, measure: str, split: str = "test") -> DataFrame:
    """The mean over silos by round, and its `mean`, `low` and `high` over seeds; accuracies in percent. Maybe empty.

    A diverged silo makes its round infinite; that is a gap.
    """
    runs = results[(results["method"] == method) & (results["measure"] == measure) & (results["split"] == split)]
    if runs.empty:
        return DataFrame(columns=["mean", "low", "high"])
    seeds = [by_round(run, measure, split).mean(axis=1) for _, run in runs.groupby("seed")]
    curves = DataFrame(seeds).T.sort_index() * (100 if measure.startswith("accuracy") else 1)
    curves = curves.replace(np.inf, np.nan)
    gap = curves.isna().any(axis=1)
    found = DataFrame({"mean": curves.mean(axis=1), "low": curves.min(axis=1), "high": curves.max(axis=1)})
    return found.mask(gap)


def class_counts(labels: DataFrame) -> DataFrame:
    """Silos × labels: how many samples, labels in their natural order."""
    counts = labels.pivot_table(index="silo", columns="label", values="count", aggfunc="sum", sort=False).fillna(0)
    return counts[sorted(counts.columns, key=by_value)]


def thinned(count: int, most: int) -> list[int]:
    """An even choice of `most` of so many places, both ends among them."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most)).round()})
