"""What people do today, beside the federation: a guess, a linear model, boosted trees; on each silo alone, and pooled.

Pooled ones are a ceiling that privacy forbids: only a simulation can train them. scikit-learn does the work; where it
is not installed there are no baselines.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from coterie.data import mapped
from coterie.data.own.schema import Schema
from coterie.data.own.trees import threads_for
from coterie.data.silo import Array, Part, Silo
from coterie.measure.measures import log_loss, oriented, rmse
from coterie.measure.predictions import Key, Rows
from coterie.measure.tempering import threshold

SPLITS = ("validation", "test")
POOLED = ", pooled"
MOST_INPUTS, MOST_CLASSES = 3000, 20  # beyond which trees and linear models take longer than the federation
TREES = 100
WEIGHTS = (0.01, 0.1, 1.0, 10.0)  # of the data beside a linear model's penalty
UNSEEN = 1e-3  # of the probability goes to all classes alike: a silo may meet one that it has not trained on

Fit = Callable[[Array, Array], Any]


def names(classes: int, inputs: int = 1) -> list[str]:
    """The baselines on each silo alone, the simplest first; a guess takes no time however wide the data are."""
    known = ["majority", "logistic regression", "boosted trees"] if classes else ["median", "ridge", "boosted trees"]
    return known if inputs <= MOST_INPUTS and classes <= MOST_CLASSES else known[:1]


def pooled(name: str) -> bool:
    """Whether a baseline is trained on all silos' rows."""
    return name.endswith(POOLED)


def suits(silos: Sequence[Silo]) -> bool:
    """Whether there are any for these data: rows with one label each."""
    return bool(find_spec("sklearn")) and silos[0].train.y.ndim == 1


def all_fit(silos: Sequence[Silo]) -> bool:
    """Whether memory holds the samples of all silos together as plain models take them."""
    size = sum(part.x.nbytes for silo in silos for part in (silo.train, silo.validation, silo.test))
    return size <= mapped.SHARE * mapped.memory()


def baselines(
    silos: Sequence[Silo], classes: int, seed: int, schemas: Mapping[str, Schema], positive: int | str = 1
) -> Iterator[tuple[Key, Rows]]:
    """What every baseline gives for the silos' validation and test rows; its settings are found on the first."""
    known = names(classes, int(np.prod(silos[0].train.x.shape[1:])))
    together = [_joined(silos)] if len(known) > 1 else []
    for name in known:
        of_all = _fitted(name, together, classes, seed) if together else []
        for silo, alone in zip(silos, _fitted(name, silos, classes, seed), strict=True):
            schema = schemas.get(silo.name)
            for label, model in ((name, alone), *((f"{name}{POOLED}", each) for each in of_all)):
                cut = 0.5
                for split in SPLITS:
                    part = getattr(silo, split)
                    if len(part):
                        rows = rows_of(0, part, _outputs(model, part.x, classes, schema), schema)
                        if split == "validation" and classes == 2:
                            cut = threshold(*oriented(rows.labels, rows.predicted, positive))
                        yield Key(label, seed, silo.name, split), replace(rows, threshold=cut)


def _fitted(name: str, silos: Sequence[Silo], classes: int, seed: int) -> list[Any]:
    """A baseline trained on each silo; of several penalties the one that the validation rows of all prefer.

    Chosen by each silo's few rows for itself, the same rows would flatter it beside methods that choose one for all.
    """
    tries = []
    for silo in silos:
        with threads_for(len(silo.train)):
            makers = _makers(name, classes, seed, len(silo.train))
            tries.append([make(_flat(silo.train.x), silo.train.y) for make in makers])
    losses = [
        [_loss(model, _flat(silo.validation.x), silo.validation.y, classes) for model in own]
        for own, silo in zip(tries, silos, strict=True)
        if len(silo.validation)
    ]
    best = int(np.mean(losses, axis=0).argmin()) if losses else len(tries[0]) // 2
    return [own[best] for own in tries]


def _makers(name: str, classes: int, seed: int, rows: int) -> list[Fit]:
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge

    def fit(make: Callable[[], Any]) -> Fit:
        # Of one class alone there is nothing to learn.
        return lambda x, y: (make() if not classes or len(np.unique(y)) > 1 else DummyClassifier()).fit(x, y)

    if name in ("majority", "median"):
        return [fit(DummyClassifier if classes else lambda: DummyRegressor(strategy="median"))]
    if name == "boosted trees":
        kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        leaf = int(np.clip(rows // 20, 3, 20))
        common = {"max_iter": TREES, "min_samples_leaf": leaf, "random_state": seed}
        return [fit(partial(kind, learning_rate=rate, **common)) for rate in (0.03, 0.1)]
    if classes:
        return [fit(partial(LogisticRegression, C=weight, max_iter=500)) for weight in WEIGHTS]
    return [fit(partial(Ridge, alpha=1 / weight)) for weight in WEIGHTS]


def _loss(model: Any, x: Array, y: Array, classes: int) -> float:
    return log_loss(y, _probabilities(model, x, classes)) if classes else rmse(y, model.predict(x))


def rows_of(round: int, part: Part, outputs: Array, schema: Schema | None) -> Rows:
    """What a model gives for the rows of a split; numbers in the label's unit, less its centre."""
    places = np.arange(len(part)) if part.rows is None else part.rows
    units = places if part.units is None else part.units
    if part.y.ndim > 1:
        return Rows(round, np.zeros(len(part)), outputs, places, units, plain=False)
    if outputs.ndim == 2:
        return Rows(round, part.y, outputs, places, units)
    unit, centre = (1.0, 0.0) if schema is None else (schema.unit, schema.centre)
    return Rows(round, part.y.astype(float) * unit + centre, outputs.astype(float) + centre, places, units)


def _outputs(model: Any, x: Array, classes: int, schema: Schema | None) -> Array:
    if classes:
        return _probabilities(model, _flat(x), classes)
    return np.asarray(model.predict(_flat(x)) * (1.0 if schema is None else schema.unit))


def _probabilities(model: Any, x: Array, classes: int) -> Array:
    found = np.zeros((len(x), classes))
    found[:, model.classes_] = model.predict_proba(x)
    return (1 - UNSEEN) * found + UNSEEN / classes


def _flat(x: Array) -> Array:
    return x.reshape(len(x), -1)


def _joined(silos: Sequence[Silo]) -> Silo:
    def together(split: str) -> Part:
        parts = [getattr(silo, split) for silo in silos]
        return Part(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))

    return Silo("all", together("train"), together("validation"), together("test"))
