"""One temperature for a silo's model, found on validation data: trained models are far too sure of themselves.

Guo et al., "On Calibration of Modern Neural Networks", ICML 2017. A temperature T makes p into p^(1/T), scaled to sum
to one: of a single network that is softmax(logits / T). A silo's own validation rows count, and with them those of
all silos together as if they were `PRIOR` rows, so a silo with few follows the others. A silo
gives its summed log-loss at a grid of temperatures for it, no row.

The rows that find a temperature have picked the round and the rates too, so a model looks better on them than it is:
that it should be surer than it is (T below 1) takes many rows.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from coterie.measure.measures import LEAST, Array, best_threshold, oriented

GRID = np.exp(np.linspace(np.log(0.25), np.log(10.0), 61))
PRIOR = 100.0  # validation rows that all silos together are worth to one of them
TOWARDS_ONE = 0.5  # how strongly a temperature is held at 1 where nothing is known: in log-loss, of a squared log T
SURER = 15.0  # and one below 1


def tempered(p: Array, temperature: float) -> Array:
    """Probabilities (n, C) at a temperature."""
    if temperature == 1:
        return p
    logs = np.log(np.clip(p.astype(float), LEAST, None)) / temperature
    made = np.exp(logs - logs.max(1, keepdims=True))
    return np.asarray(made / made.sum(1, keepdims=True), dtype=p.dtype)


def curve(y: Array, p: Array) -> Array:
    """The summed log-loss of a silo's validation rows at every temperature of the grid."""
    logs = np.log(np.clip(p.astype(float), LEAST, None))[None] / GRID[:, None, None]  # (grid, n, C)
    top = logs.max(2, keepdims=True)
    total = top[..., 0] + np.log(np.exp(logs - top).sum(2))
    return np.asarray((total - logs[:, np.arange(len(y)), y]).sum(1))


def temperatures(curves: Mapping[str, Array], rows: Mapping[str, int]) -> dict[str, float]:
    """Each silo's temperature, from every silo's curve and number of validation rows."""
    pooled = pooled_curve(curves.values(), sum(rows.values()))
    return {silo: temperature(each, pooled) for silo, each in curves.items()}


def pooled_curve(curves: Iterable[Array], rows: int) -> Array:
    """The log-loss of a row of all silos at every temperature of the grid, from their curves and number of rows."""
    return np.asarray((sum(curves, np.zeros(len(GRID))) + held_at_one(GRID, SURER)) / max(rows, 1))


def held_at_one(grid: Array, surer: float) -> Array:
    """What each temperature costs beside its log-loss: nothing at 1, and `surer` times a squared log T below."""
    return np.asarray(np.where(grid < 1, surer, TOWARDS_ONE) * np.log(grid) ** 2)


def temperature(own: Array, pooled: Array) -> float:
    """A silo's temperature, by its own curve and that of all."""
    values = own + PRIOR * pooled
    best = int(np.clip(values.argmin(), 1, len(GRID) - 2))
    before, at, after = values[best - 1 : best + 2]
    bend = before - 2 * at + after
    # where a parabola through the lowest point and its neighbours is lowest
    step = 0.5 * (before - after) / bend if bend > 0 else 0.0
    place = np.log(GRID[best]) + float(np.clip(step, -1, 1)) * (np.log(GRID[1]) - np.log(GRID[0]))
    return float(np.exp(place))


def threshold(y: Array, p: Array) -> float:
    """From which probability on a silo's model calls the second of two classes, by its own validation rows.

    Probabilities are as the model gives them; the share of positives, where that is the threshold, is a probability
    once these rows have tempered them.
    """
    own = temperatures({"": curve(y, p)}, {"": len(y)})[""]
    return moved(best_threshold(y, tempered(p, own)), 1 / own)


def can_calibrate(y: Array, p: Array | None) -> bool:
    """Whether these are probabilities of rows with one label each, of a model that has not diverged."""
    return p is not None and p.ndim == 2 and y.ndim == 1 and bool(np.isfinite(p).all())


def cut_of(y: Array, p: Array | None, positive: int | str) -> float | None:
    """The threshold of the positive of two classes; None where there are no two, or nothing to find it by."""
    if p is None or not can_calibrate(y, p) or p.shape[1] != 2:
        return None
    return threshold(*oriented(y, p, positive))


def moved(threshold: float, temperature: float) -> float:
    """Where a threshold is once probabilities are at a temperature: it parts the same rows."""
    at = float(tempered(np.array([[1 - threshold, threshold]]), temperature)[0, 1])
    return float(np.clip(at, LEAST, 1 - LEAST))
