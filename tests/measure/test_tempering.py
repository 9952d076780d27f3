"""Temperatures: what is found of known truth, and that few rows, which picked the model too, make none too sure."""

import numpy as np
import pytest

from coterie.measure.measures import log_loss
from coterie.measure.tempering import curve, temperatures, tempered


def softmax(logits):
    made = np.exp(logits - logits.max(-1, keepdims=True))
    return made / made.sum(-1, keepdims=True)


def drawn(rng, logits):
    """A label of each row, by the probabilities."""
    return (softmax(logits).cumsum(1) < rng.random(len(logits))[:, None]).sum(1).clip(max=logits.shape[1] - 1)


def found(silos):
    """The temperatures of silos' (labels, probabilities)."""
    curves = {name: curve(y, p) for name, (y, p) in silos.items()}
    return temperatures(curves, {name: len(y) for name, (y, _) in silos.items()})


@pytest.mark.parametrize("truth", [0.5, 1.0, 3.0])
def test_many_rows_find_the_temperature_that_is_true(truth):
    rng = np.random.default_rng(0)
    logits = 1.5 * rng.normal(size=(20_000, 3))
    y = drawn(rng, logits)
    assert found({"a": (y, softmax(logits * truth))})["a"] == pytest.approx(truth, rel=0.05)


def test_a_silo_without_rows_follows_the_others_and_nobody_s_rows_say_nothing():
    rng = np.random.default_rng(0)
    logits = 1.5 * rng.normal(size=(20_000, 3))
    y, p = drawn(rng, logits), softmax(3 * logits)
    given = found({"a": (y, p), "b": (y[:0], p[:0])})
    assert given["b"] == pytest.approx(3, rel=0.05)
    assert found({"a": (y[:0], p[:0])})["a"] == pytest.approx(1, rel=0.06)  # a step of the grid


def test_fifty_rows_that_are_all_right_do_not_make_a_model_much_surer():
    p = np.tile([0.8, 0.2], (50, 1))
    assert 0.5 < found({"a": (np.zeros(50, int), p)})["a"] < 1
    assert found({"a": (np.ones(50, int), p)})["a"] > 5  # that it should be less sure is believed


def _deployed(rng):
    """Log-loss on fresh rows, raw and tempered, of the best of 26 models by the 50 validation rows of five silos."""
    models = 26
    logits = np.zeros((5050, 3)) + 2.0 * rng.normal(size=(5050, 3))
    y = drawn(rng, logits)
    scores = logits + 1.5 * rng.normal(size=(models, 5050, 3))  # each knows the truth with errors of its own
    p = softmax(rng.uniform(0.3, 1.2, size=(models, 1, 1)) * scores)
    best = min(range(models), key=lambda i: log_loss(y[:50], p[i, :50]))
    at = found({f"s{i}": (y[10 * i : 10 * i + 10], p[best, 10 * i : 10 * i + 10]) for i in range(5)})
    fresh = slice(50, None)
    made = tempered(p[best, fresh], float(np.mean([*at.values()])))
    return log_loss(y[fresh], p[best, fresh]), log_loss(y[fresh], made)


def test_what_was_picked_by_few_rows_is_not_worse_on_fresh_rows_for_being_tempered_by_them():
    raw, made = np.array([_deployed(np.random.default_rng(seed)) for seed in range(40)]).T
    assert made.mean() < raw.mean() and (made / raw).max() < 1.1
