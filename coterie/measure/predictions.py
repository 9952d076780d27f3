"""What every silo's model gives for its validation and test rows at the picked round: all measures are taken of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame

from coterie.data.silo import HoldsData
from coterie.measure.measures import PACKAGED, Array, Measure, oriented, taken
from coterie.measure.paired import Scored, scored

PROBABILITY = "probability_"
FIRST = ["method", "seed", "round", "silo", "split", "sample", "row", "label", "value"]
RAW = ("log_loss", "brier", "calibration_error")  # measures that tempering moves
TEMPERED = "_tempered"  # after the name of one that a deployed silo took of its tempered model


class Key(NamedTuple):
    """Whose rows."""

    method: str
    seed: int
    silo: str
    split: str


@dataclass(frozen=True, repr=False)
class Rows(HoldsData):
    """One silo's rows of a split, and what its model gives for them."""

    round: int
    labels: Array  # (n,) classes as whole numbers, or numbers in their own unit
    predicted: Array  # (n, C) probabilities, or (n,) numbers; of sequences (n,) how right each is
    rows: Array  # (n,) where they are in what the silo holds, from 0
    units: Array  # (n,) which of them count as one
    plain: bool = True  # whether each row has one label
    raw: Array | None = None  # (n, C) before tempering
    threshold: float | Array = 0.5  # of the positive of two classes, maybe each row's own
    temperature: float = 1.0  # that made `raw` into what is predicted

    def about(self) -> str:
        return f"{len(self.labels)} rows"

    @property
    def classes(self) -> int:
        """How many; 0: numbers."""
        return self.predicted.shape[1] if self.predicted.ndim == 2 else 0

    def scored(self, measure: Measure) -> Scored:
        """The model by a measure, and how each row moves it."""
        if not self.plain:  # a mean over rows, whatever each is made of
            value = float(self.predicted.mean())
            moved = (self.predicted - value) / len(self.predicted)
            return Scored(value, self.units, moved, np.zeros(len(self.units), dtype=int))
        if not np.isfinite(self.predicted).all():  # a model that diverged is worth nothing
            worth = 0.0 if measure.higher else np.inf
            return Scored(worth, self.units, np.zeros(len(self.units)), np.zeros(len(self.units), dtype=int))
        return scored(measure, self.labels, measure.seen(self.predicted, self.threshold), self.units)

    def measured(self, by: str = "") -> dict[str, float]:
        """By every measure; of probabilities some also as they were before tempering."""
        if not self.plain or not np.isfinite(self.predicted).all():
            return {}
        found = taken(self.labels, self.predicted, self.classes, self.threshold, by)
        if self.raw is not None:
            before = taken(self.labels, self.raw, self.classes)
            found |= {f"{name}_raw": before[name] for name in RAW}
        return found

    def take(self, places: Array) -> "Rows":
        """Some of them."""
        cut = self.threshold[places] if isinstance(self.threshold, np.ndarray) else self.threshold
        raw = None if self.raw is None else self.raw[places]
        fields = {name: getattr(self, name)[places] for name in ("labels", "predicted", "rows", "units")}
        return replace(self, raw=raw, threshold=cut, **fields)

    def apart(self, place: int) -> "Rows":
        """With units that no other silo's rows share."""
        return replace(self, units=np.unique(self.units, return_inverse=True)[1] + (place << 40))

    def seen_from(self, positive: int | str) -> "Rows":
        """With the positive of two classes as the second."""
        if positive != 0 or self.classes != 2:
            return self
        labels, predicted = oriented(self.labels, self.predicted, positive)
        return replace(self, labels=labels, predicted=predicted, raw=None if self.raw is None else self.raw[:, ::-1])


Predictions = Mapping[Key, Rows]


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of several silos as those of one; each is cut at its silo's own threshold."""
    first = parts[0]

    def end_to_end(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])

    raw = None if first.raw is None else end_to_end("raw")
    thresholds = np.concatenate([np.broadcast_to(part.threshold, len(part.labels)) for part in parts])
    return replace(
        first, labels=end_to_end("labels"), predicted=end_to_end("predicted"), rows=end_to_end("rows"),
        units=end_to_end("units"), raw=raw, threshold=thresholds,
    )  # fmt: skip


def as_frame(predictions: Predictions, names: Sequence[str] = ()) -> DataFrame:
    """A row for each: whose, its label, whether it was right or how far off, and the probabilities or the number.

    Of classes also the temperature, and of two the threshold, by which every measure of a seed is made again.
    """
    held = {key: rows for key, rows in predictions.items() if len(rows.labels)}
    if not held:
        return DataFrame(columns=FIRST)
    counts = [len(rows.labels) for rows in held.values()]
    whose = {name: np.array([getattr(key, name) for key in held]) for name in Key._fields}
    whose["round"] = np.array([rows.round for rows in held.values()])
    every = joined([replace(rows, raw=None) for rows in held.values()])
    table = {
        name: np.repeat(each.astype("O") if each.dtype.kind == "U" else each, counts) for name, each in whose.items()
    }
    table |= {"sample": np.concatenate([np.arange(n) for n in counts]), "row": every.rows + 1}
    if not every.plain:
        return DataFrame(table | {"label": None, "value": every.predicted})[FIRST]
    if not every.classes:
        off = {"label": every.labels, "value": np.abs(every.predicted - every.labels)}
        return DataFrame(table | off | {"prediction": every.predicted})[[*FIRST, "prediction"]]
    shown = np.array([str(c) for c in range(every.classes)] if not names else [*names], dtype=object)
    right = {"label": shown[every.labels], "value": (every.predicted.argmax(1) == every.labels).astype(float)}
    chances = {f"{PROBABILITY}{name}": every.predicted[:, c] for c, name in enumerate(shown)}
    fitted = {"temperature": np.repeat([rows.temperature for rows in held.values()], counts)}
    fitted |= {"threshold": np.asarray(every.threshold)} if every.classes == 2 else {}
    return DataFrame(table | right | chances | fitted)[[*FIRST, *chances, *fitted]]


def measured(
    predictions: Predictions, members: Sequence[str], by: str = ""
) -> Iterator[tuple[str, dict[str, dict[str, object]]]]:
    """By method, every measure: mean over silos and seeds, of all rows together, by silo, and where it is undefined."""
    for method in dict.fromkeys(key.method for key in predictions):
        mine = {key: rows for key, rows in predictions.items() if key.method == method and key.silo in members}
        values: dict[tuple[str, str], dict[str, list[float]]] = {}  # measure, split; silo
        for key, rows in mine.items():
            for name, value in rows.measured(by).items():
                values.setdefault((name, key.split), {}).setdefault(key.silo, []).append(value)
        pooled = _pooled(mine, by)
        found: dict[str, dict[str, object]] = {}
        for (name, split), silos in values.items():
            means = {silo: float(np.mean(each)) for silo, each in silos.items()}
            defined = {silo: value for silo, value in means.items() if not np.isnan(value)}
            about = found.setdefault(name, {})
            about[split] = float(np.mean(list(defined.values()))) if defined else None
            if split == "test":
                about |= {"pooled": pooled.get(name), "silos": defined}
                about |= {"undefined": sorted(set(means) - set(defined))} if len(defined) < len(means) else {}
        yield method, found


def _pooled(predictions: Predictions, by: str) -> dict[str, float]:
    """Every measure of the test rows of all silos as those of one, mean over seeds."""
    seeds: dict[int, list[Rows]] = {}
    for key, rows in predictions.items():
        if key.split == "test" and len(rows.labels):
            seeds.setdefault(key.seed, []).append(rows)
    found: dict[str, list[float]] = {}
    for parts in seeds.values():
        for name, value in joined(parts).measured(by).items():
            found.setdefault(name, []).append(value)
    return {name: float(np.mean(each)) for name, each in found.items()}


def reported(results: DataFrame, methods: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, dict[str, object]]]:
    """The same as far as silos report it that keep their rows to themselves: at the picked rounds, from the results."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for method, scores in methods.items():
        picked = {each["seed"]: each["picked_round"] for each in scores["per_seed"]}
        mine = results[(results["method"] == method) & (results["round"] == results["seed"].map(picked))]
        moved = {name + TEMPERED: name for name in RAW if (mine["measure"] == name + TEMPERED).any()}
        named = mine["measure"].replace({name: f"{name}_raw" for name in moved.values()} | moved)
        known = [*PACKAGED, *(f"{name}_raw" for name in moved.values())]
        mine = mine.assign(measure=named)[named.isin(known)]
        for (name, split), part in mine.groupby(["measure", "split"], sort=False):
            by_silo = part.groupby("silo", sort=False)["value"].mean().dropna()
            about = found.setdefault(method, {}).setdefault(str(name), {})
            about[str(split)] = float(by_silo.mean()) if len(by_silo) else None
            if split == "test":
                about["silos"] = {str(silo): float(value) for silo, value in by_silo.items()}
    return found
