"""What the saved models of a method give for the silos' test rows, from `predictions.parquet`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pandas import DataFrame

from coterie.data.silo import HoldsData
from coterie.measure.measures import Array, taken
from coterie.measure.predictions import PROBABILITY, RAW
from coterie.measure.tempering import tempered
from coterie.runs.read import Run


@dataclass(frozen=True, repr=False)
class Predicted(HoldsData):
    """The test rows of one method, of all silos or of one."""

    labels: Array  # (n,) classes as whole numbers, of two the positive as 1; or numbers
    values: Array  # (n, C) probabilities, or (n,) numbers
    raw: Array | None  # (n, C) before tempering
    cuts: Array  # (n,) the threshold of each row's silo
    silos: Array  # (n,) whose
    names: Sequence[str]  # of the classes; empty: numbers

    def about(self) -> str:
        return f"{len(self.labels)} rows"

    def of(self, silo: str) -> "Predicted":
        """The rows of one silo."""
        mine = self.silos == silo
        raw = None if self.raw is None else self.raw[mine]
        return Predicted(self.labels[mine], self.values[mine], raw, self.cuts[mine], self.silos[mine], self.names)

    @property
    def guesses(self) -> Array:
        """(n,) the class that is predicted: of two by the silo's threshold."""
        if len(self.names) == 2:
            return np.asarray(self.values[:, 1] >= self.cuts, dtype=int)
        return np.asarray(self.values.argmax(1))

    def measured(self) -> dict[str, float]:
        """Every measure of these rows; of probabilities some also before tempering."""
        found = taken(self.labels, self.values, len(self.names), self.cuts)
        if self.raw is not None:
            before = taken(self.labels, self.raw, len(self.names))
            found |= {f"{name}_raw": before[name] for name in RAW}
        return found


def shown_methods(run: Run) -> list[str]:
    """The method of the verdict and the one without federation; without a verdict the first two."""
    found = run.verdict or {}
    named = dict.fromkeys(name for name in (found.get("judged"), found.get("chosen"), found.get("alone")) if name)
    return list(named) if found.get("judged") else list(run.methods)[:2]


def of_run(run: Run) -> dict[str, Predicted]:
    """By method, of those that the report shows and whose rows are at hand."""
    frame = run.predictions(shown_methods(run))
    if frame.empty:
        return {}
    positive = run.study.get("measure", {}).get("positive", 1)
    parts = {name: frame[frame["method"] == name] for name in shown_methods(run)}
    found = {name: predicted(part, run.methods.get(name, {}), positive) for name, part in parts.items()}
    return {name: each for name, each in found.items() if each is not None}


def predicted(frame: DataFrame, scores: Mapping[str, Any], positive: int | str) -> Predicted | None:
    """The rows of one method; `scores` has its silos' temperatures and thresholds. None: nothing to draw."""
    chances = [column for column in frame.columns if column.startswith(PROBABILITY)]
    if frame.empty or not (chances or "prediction" in frame):
        return None
    silos = frame["silo"].to_numpy(dtype=str)
    if not chances:
        values, labels = frame["prediction"].to_numpy(float), frame["label"].to_numpy(float)
        return Predicted(labels, values, None, np.zeros(len(silos)), silos, ()) if np.isfinite(values).all() else None
    if positive == 0 and len(chances) == 2:
        chances = chances[::-1]
    names = [column.removeprefix(PROBABILITY) for column in chances]
    values, places = frame[chances].to_numpy(), {name: i for i, name in enumerate(names)}
    if not np.isfinite(values).all():
        return None
    cuts = frame["silo"].map(scores.get("thresholds") or {}).fillna(0.5).to_numpy(float)
    labels = frame["label"].astype(str).map(places).to_numpy(int)
    return Predicted(labels, values, _raw(values, silos, scores.get("temperatures") or {}), cuts, silos, names)


def _raw(values: Array, silos: Array, temperatures: Mapping[str, float]) -> Array | None:
    """What the models gave before tempering: a temperature's inverse undoes it."""
    if not temperatures:
        return None
    made = values.copy()
    for silo, temperature in temperatures.items():
        mine = silos == silo
        made[mine] = tempered(values[mine], 1 / temperature)
    return made
