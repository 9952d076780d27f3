"""What silos' models are worth on a split, by the measures of their labels and the one that a study goes by."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.engine.task import Task
from coterie.engine.training import Training
from coterie.measure.measures import AUTO, measure_of, oriented
from coterie.measure.tempering import cut_of
from coterie.wire import Deployable


def measured(
    task: Task, personal: Deployable, cloud: Deployable | None, splits: Sequence[str], training: Training
) -> tuple[dict[tuple[str, str], Tensor], dict[str, dict[str, np.ndarray]]]:
    """What silos' models are worth, (k,) by split and measure; by split and silo what they give for each sample."""
    values, outputs = dict[tuple[str, str], Tensor](), dict[str, dict[str, np.ndarray]]()
    cut = training.by != AUTO and measure_of(training.by).cut and task.model.classes == 2 and "validation" in splits
    for suffix, predictor in {"": personal, "_cloud": cloud}.items():
        if predictor is None:
            continue
        cuts = thresholds(task, predictor, training.positive) if cut else {}
        for split in splits:
            means, each = worth(task, predictor, split, training.by, training.positive, cuts)
            values |= {(split, name + suffix): value.double() for name, value in means.items()}
            outputs.setdefault(split, each)
    return values, outputs


def measure(task: Task, predictor: Deployable, split: str) -> dict[str, Tensor]:
    """What each silo's model is worth on a split: (k,) each, NaN for an empty split.

    The mean loss; of classes also the accuracy, of numbers rmse and mae in the label's own unit, and r2.
    """
    return worth(task, predictor, split)[0]


def worth(
    task: Task,
    predictor: Deployable,
    split: str,
    by: str = "",
    positive: int | str = 1,
    cuts: Mapping[str, float] | None = None,
) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
    """The same and the measure that the study goes `by`; by silo also what its model gives for every sample.

    That is probabilities (n, C) or numbers (n,). Of sequences and of several targets, which no row of a table
    holds, it is how right or how far off (n,).
    """
    outcomes = task.outcomes(predictor, split)
    rows, counts = outcomes.pop("outputs", None), task.counts(split)
    means = {name: value.sum(1) / counts.reshape(-1, *[1] * (value.ndim - 2)) for name, value in outcomes.items()}
    means = means if task.model.classes or not means else _of_numbers(means, task.model.unit)
    if rows is None:
        return means, {}
    sizes = counts.tolist()
    outputs = {name: row[:n] for name, row, n in zip(task.names, rows.cpu().numpy(), sizes, strict=True) if n}
    if by not in ("", AUTO) and by not in means:
        cuts = cuts or {}
        found = [_measured(task, by, positive, name, split, outputs, cuts.get(name, 0.5)) for name in task.names]
        means[by] = torch.tensor(found, dtype=torch.float64, device=counts.device)
    return means, outputs


def thresholds(task: Task, predictor: Deployable, positive: int | str) -> dict[str, float]:
    """By silo from where on its model calls the positive of two classes, where it has validation data."""
    given = worth(task, predictor, "validation")[1]
    found = {name: cut_of(task.store.labels("validation", name), p, positive) for name, p in given.items()}
    return {name: cut for name, cut in found.items() if cut is not None}


def _measured(
    task: Task, by: str, positive: int | str, name: str, split: str, outputs: dict[str, np.ndarray], threshold: float
) -> float:
    """One silo by a measure of its predictions; NaN where it is undefined."""
    labels, measure = task.store.labels(split, name), measure_of(by)
    if name not in outputs or labels.ndim > 1:
        return np.nan
    if not np.isfinite(outputs[name]).all():  # a model that diverged is worth nothing
        return 0.0 if measure.higher else np.inf
    if task.model.classes:
        y, p = oriented(labels, outputs[name], positive)
        return measure.of(y, measure.seen(p, threshold))
    return measure.of(labels * task.model.unit, outputs[name])


def _of_numbers(means: dict[str, Tensor], unit: float) -> dict[str, Tensor]:
    """Measures of numbers, of which the model's 1 is so many of the label's own unit."""
    variance = (means["square"] - means["mean"].square()).mean(-1)
    # Targets that are all alike leave nothing to explain: no r2.
    r2 = torch.where(variance > 1e-9, 1 - means["loss"] / variance, torch.nan)
    return {"loss": means["loss"], "rmse": unit * means["loss"].sqrt(), "mae": means["mae"], "r2": r2}
