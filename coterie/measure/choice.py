"""Which method to take: the one that validation rows prefer, or a cheaper one next to it. Test rows choose nothing.

Where a mixture of the others is among them, it is taken, unless it is surely behind or another is shown to be as good.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pandas import DataFrame

from coterie.measure.distributions import normal_below
from coterie.measure.measures import Measure, log_loss, measure_of
from coterie.measure.paired import Estimate, Scored, difference
from coterie.measure.pooling import of_silos, over
from coterie.measure.predictions import Key, Predictions
from coterie.measure.significance import ALPHA

NOTHING: dict[str, Any] = {
    "chosen": None, "best": None, "preferred": None, "sure": None, "equals": [], "undecided": [], "ranked": [],
}  # fmt: skip
AS_GOOD = 0.25  # of a margin: so much behind the one preferred on validation data, a cheaper method is taken
NEXT_TO = 0.01  # and so much of its log-loss


class Scores(dict[Key, Scored]):
    """Every silo's rows by one measure, and what two methods' are beside each other."""

    def __init__(self, predictions: Predictions, measure: Measure) -> None:
        known = (measure_of("accuracy"), measure_of("mae"))  # what is kept of rows with several labels
        super().__init__(
            {key: rows.scored(measure) for key, rows in predictions.items() if rows.plain or measure in known}
        )
        self.measure, self.seeds = measure, list(dict.fromkeys(key.seed for key in predictions))

    def of_seeds(self, method: str, silo: str, split: str) -> dict[int, Scored]:
        """A method on one silo's rows, by seed; without seeds whose rows leave the measure undefined."""
        found = {seed: self.get(Key(method, seed, silo, split)) for seed in self.seeds}
        return {seed: each for seed, each in found.items() if each is not None and not np.isnan(each.value)}

    def gain(self, silo: str, split: str, own: str, other: str) -> Estimate | None:
        """One method over another on the same rows of a silo, over all seeds; None where its rows are not here."""
        mine, theirs = (self.of_seeds(method, silo, split) for method in (own, other))
        seeds = [seed for seed in mine if seed in theirs]
        if not seeds:
            return None
        return difference(self.measure, [mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])

    def gains(self, silos: Iterable[str], split: str, own: str, other: str) -> list[Estimate]:
        """The same of silos of which it is known, and a number."""
        found = [self.gain(silo, split, own, other) for silo in silos]
        return [gain for gain in found if gain is not None and np.isfinite(gain.value)]


@dataclass(frozen=True)
class Judged:
    """One method at its picked round: by silo its score, its validation score, and the standard error of the first."""

    test: dict[str, float]  # means over seeds
    validation: dict[str, float]
    errors: dict[str, float]  # where rows stay at their silos
    rounds: dict[int, int]  # by seed


def choose(
    methods: Mapping[str, Judged],
    scores: Scores,
    costs: Mapping[str, float],
    predictions: Predictions,
    flattered: Collection[str] = (),
    mixtures: Collection[str] = (),
) -> dict[str, Any]:
    """The method that validation rows prefer, or a cheaper one next to it; which are as good, and which may be.

    Of those whose difference from the best may be chance by the measure, the one with the lowest log-loss is preferred;
    but a mixture of the others before all that are ahead of it by no more than the margin: the best of many on few rows
    is there by chance as well, and a mixture is near the best of its members on any rows. Instead of it only what is
    shown not to be behind by the margin is taken. Of silos that keep their rows to themselves nothing is shown.
    Methods that validation rows have flattered, since they learn from them, are out, unless there is no other.
    """
    measure = scores.measure
    methods = {label: each for label, each in methods.items() if label not in flattered} or methods
    if not methods or not all(each.validation for each in methods.values()):
        return NOTHING
    grid = DataFrame({label: each.validation for label, each in methods.items()}).replace([np.inf, -np.inf], np.nan)
    grid = grid.loc[:, grid.notna().sum() == grid.notna().sum().max()].dropna()  # a method that diverged is out
    if grid.empty:
        return NOTHING
    means = grid.mean()
    ranked = list(means.sort_values(ascending=not measure.higher, kind="stable").index)
    best = ranked[0]
    margin = measure.margin * (abs(means[best]) if measure.relative else 1)
    leads = {label: _lead(best, label, grid, scores) for label in ranked[1:]}
    level = [best, *(label for label, lead in leads.items() if lead.low <= 0)]  # whose difference may be chance
    losses = {label: loss for label in level if (loss := log_loss_of(label, predictions)) is not None}
    surest = min(losses, key=losses.__getitem__) if best in losses else best
    near = [label for label in level if measure.better(means[best], means[label]) <= margin]
    known = [
        label for label in near if label in mixtures and label not in flattered and _shown(best, label, grid, scores)
    ]
    first = known[0] if known else surest
    close = [
        label
        for label in level
        if measure.better(means[first], means[label]) <= AS_GOOD * margin
        and losses.get(label, 0.0) <= (1 + NEXT_TO) * losses.get(first, 0.0)
        and (not known or _as_one(first, label, predictions) or _lead(first, label, grid, scores).high < margin)
    ]
    chosen = min(close, key=lambda label: (costs.get(label, 0.0), list(methods).index(label)))
    return {
        "chosen": chosen,
        "best": best,
        "preferred": first,  # next to which a cheaper one may be
        "sure": _ahead(next(iter(leads.values()))) if leads else None,  # that the best is ahead of the next
        "equals": [label for label, lead in leads.items() if lead.within(margin, ALPHA)],
        "undecided": [
            label for label, lead in leads.items() if lead.low <= 0 <= lead.high and not lead.within(margin, ALPHA)
        ],
        "ranked": ranked,
    }


def log_loss_of(label: str, predictions: Predictions) -> float | None:
    """A method's mean log-loss over the silos' validation rows, which says more of few rows than how many are right."""
    found = [
        log_loss(rows.labels, rows.predicted)
        for key, rows in predictions.items()
        if (key.method, key.split) == (label, "validation") and rows.classes and rows.plain and len(rows.labels)
    ]
    return float(np.mean(found)) if found and np.isfinite(found).all() else None


def _ahead(lead: Estimate) -> float:
    """How probable it is that the best is truly ahead."""
    return normal_below(lead.value / lead.error) if 0 < lead.error < np.inf else 0.5


def _as_one(first: str, other: str, predictions: Predictions) -> bool:
    """Whether two methods give the same for every validation row, as a mixture of one member does."""
    keys = [key for key in predictions if (key.method, key.split) == (first, "validation")]
    others = [predictions.get(key._replace(method=other)) for key in keys]
    return all(
        each is not None and np.array_equal(predictions[key].predicted, each.predicted)
        for key, each in zip(keys, others, strict=True)
    )


def _shown(best: str, other: str, grid: DataFrame, scores: Scores) -> bool:
    """Whether the rows by which two methods differ are known in all these silos."""
    return all(scores.gain(str(silo), "validation", best, other) is not None for silo in grid.index)


def _lead(best: str, other: str, grid: DataFrame, scores: Scores) -> Estimate:
    """By how much the best is ahead of another on validation data, mean over these silos."""
    leads = [scores.gain(str(silo), "validation", best, other) for silo in grid.index]
    known = [each for each in leads if each is not None]
    if len(known) == len(leads):
        return over(known)
    sign = 1 if scores.measure.higher else -1
    return of_silos(sign * (grid[best] - grid[other]).to_numpy())
