"""Boosted trees of one silo alone, as arrays: what people with tables use today."""

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np

from coterie.data.silo import Array
from coterie.errors import BadInput

TREES = "trees"
ROUNDS, RATE = 100, 0.1
WORTH_THREADS = 50_000  # rows


def grown(x: Array, y: Array, classes: int) -> tuple[Any, dict[str, Array]] | None:
    """scikit-learn's model of these rows, and its trees as arrays; None where rows of one class teach nothing."""
    if find_spec("sklearn") is None:
        raise BadInput(f"incumbent = '{TREES}': scikit-learn is not installed; pip install scikit-learn")
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if classes and len(np.unique(y)) < 2:
        return None
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    leaf = int(np.clip(len(y) // 20, 3, 20))
    model = kind(max_iter=ROUNDS, learning_rate=RATE, min_samples_leaf=leaf, early_stopping=False, random_state=0)
    with threads_for(len(x)):
        model.fit(x.reshape(len(x), -1), y)
    return model, _arrays(model, classes)


def threads_for(rows: int) -> AbstractContextManager[Any]:
    """As many threads as so many rows are worth: on a busy machine several wait for each other much longer than they
    work (100 trees on 600 rows: 116 s with two, 0.8 s with one)."""
    from threadpoolctl import threadpool_limits  # which scikit-learn brings

    return threadpool_limits(1) if rows < WORTH_THREADS else nullcontext()


def _arrays(model: Any, classes: int) -> dict[str, Array]:
    """Trees one below the other, their nodes side by side: (T, N); a leaf leads to itself."""
    trees = [(c, tree.nodes) for each in model._predictors for c, tree in enumerate(each)]
    size = max(len(nodes) for _, nodes in trees)
    made: dict[str, Array] = {
        name: np.zeros((len(trees), size), kind)
        for name, kind in (("feature", "i8"), ("threshold", "f8"), ("left", "i8"), ("right", "i8"), ("value", "f8"))
    }
    for t, (_, nodes) in enumerate(trees):
        n, leaf = len(nodes), nodes["is_leaf"].astype(bool)
        itself = np.arange(n)
        made["feature"][t, :n] = np.where(leaf, 0, nodes["feature_idx"])
        made["threshold"][t, :n] = np.where(leaf, 0, nodes["num_threshold"])
        made["left"][t, :n], made["right"][t, :n] = (np.where(leaf, itself, nodes[side]) for side in ("left", "right"))
        made["value"][t, :n] = nodes["value"]
    made["output"] = np.array([c for c, _ in trees], "i8")  # which sum a tree is of
    made["base"] = np.asarray(model._baseline_prediction, "f8").reshape(-1)
    made["depth"] = np.array([max(int(nodes["depth"].max()) for _, nodes in trees)], "i8")
    made["places"] = np.asarray(model.classes_ if classes else [0], "i8")  # classes that the silo has
    return made
