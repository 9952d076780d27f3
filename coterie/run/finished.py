"""What a study that has run leaves: its summary, its tables and its report, in one folder."""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from coterie.data.own.agree import Difference
from coterie.data.own.schema import Schema
from coterie.data.silo import HoldsData, Part, Silo
from coterie.engine.rounds import Outcome
from coterie.engine.store import SPLITS
from coterie.engine.training import Training
from coterie.measure.blocks import block_scores
from coterie.measure.judgement import judgement
from coterie.measure.measures import best_threshold, oriented
from coterie.measure.metrics import summarize
from coterie.measure.predictions import Key, Predictions, Rows, as_frame, measured, reported
from coterie.measure.tempering import curve, temperatures, tempered
from coterie.methods.separate import Separate
from coterie.methods.wrappers.spent import spent, spent_by_all
from coterie.report.page import render
from coterie.run.baselines import pooled
from coterie.run.beside import set_beside
from coterie.run.deployable import write_deployable
from coterie.runs.checkpoint import traces_in
from coterie.runs.folder import RESULTS, checkpoint_folder, partial_results
from coterie.runs.read import read_run
from coterie.studies.study import Study
from coterie.version import VERSION

COSTS = ("bytes_up", "bytes_down", "train_seconds", "missing", "rejected", "kept")
LAST = 3  # rounds: a method whose best is among them was still improving


@dataclass(frozen=True, repr=False)
class Finished(HoldsData):
    """A study that has run."""

    study: Study  # with everything written back
    results: pd.DataFrame
    summary: dict[str, Any]
    traces: dict[str, dict[str, np.ndarray]]  # of the first seed
    labels: pd.DataFrame
    predictions: pd.DataFrame  # every validation and test row at the picked round, and what its model gives for it
    differences: Sequence[Difference] = ()  # between the tables of own silos
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # rows by silo and split, of the first seed
    splits: pd.DataFrame | None = None  # of own data: what each row was for

    def about(self) -> str:
        return f"{self.study.name}: {', '.join(self.study.methods)}"


@dataclass(frozen=True)
class Facts:
    """What is known of the silos of a seed beside their scores."""

    groups: Mapping[str, int]  # of each member, where the data have such
    tested: Mapping[str, int]  # test samples of everyone, newcomers included
    silos: Mapping[str, Silo] = field(default_factory=dict)  # the members, where their data are here
    schemas: Mapping[str, Schema] = field(default_factory=dict)


def collected(
    study: Study,
    out: Path,
    outcomes: Mapping[tuple[str, int], Outcome],
    facts: Mapping[int, Facts],
    device: torch.device,
    seconds: float,
    baselines: Predictions | None = None,
) -> Finished:
    """What all methods on all seeds leave, from their outcomes and the journals in the folder of the run."""
    extras, kept = dict[str, list[dict[str, Any]]](), dict[str, dict[str, Any]]()
    predictions = dict[Key, Rows]()
    for place, ((name, seed), outcome) in enumerate(outcomes.items()):
        predictions |= predicted(name, seed, outcome, facts[seed])
        costs = {key: getattr(outcome, key) for key in COSTS}
        extras.setdefault(name, []).append({"seed": seed, **costs, **rounds_run(outcome, study.training_of(name))})
        groups = facts[seed].groups
        if name not in kept and (found := traces_in(checkpoint_folder(out, place, name, seed))):
            kept[name] = {"silos": np.array(list(groups)), "groups": np.array(list(groups.values())), **found}
    predictions |= baselines or {}
    whole = partial_results(out)
    sizes = {seed: each.tested for seed, each in facts.items()}
    members = {seed: list(each.groups) for seed, each in facts.items()}
    fitted = dict[str, dict[str, Any]]()
    for (name, _), outcome in outcomes.items():  # those of the first seed, whose models are kept
        found = {key: getattr(outcome, key) for key in ("temperatures", "thresholds", "mixtures", "gated")}
        fitted.setdefault(name, {key: each for key, each in found.items() if each})
    summary = summarized(study, whole, predictions, kept, sizes, extras, members, device, fitted)
    schemas = next(iter(facts.values())).schemas
    frame = as_frame(predictions, next(iter(schemas.values())).classes if schemas else ())
    first = next(iter(facts.values()))
    counts = {s.name: {split: len(getattr(s, split)) for split in SPLITS} for s in first.silos.values()}
    return Finished(study, whole, {"seconds": seconds, **summary}, kept, label_counts([]), frame, counts=counts)


def summarized(
    study: Study,
    results: pd.DataFrame,
    predictions: Predictions,
    kept: Mapping[str, Mapping[str, np.ndarray]],
    sizes: Mapping[int, Mapping[str, int]],
    extras: Mapping[str, Sequence[Mapping[str, Any]]],
    members: Mapping[int, Sequence[str]],
    device: torch.device,
    fitted: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """What `summary.json` holds."""
    by, positive = study.training.by, study.training.positive
    methods = summarize(results, sizes, extras, by)
    seen = {key: rows.seen_from(positive) for key, rows in predictions.items()}
    taken = dict(measured(seen, next(iter(members.values())), by)) or reported(results, methods)
    for name in methods:
        methods[name] |= {"measures": taken[name]} if name in taken else {}
    today = {name: {"measures": found} for name, found in taken.items() if name not in methods}
    for name, each in fitted.items():
        methods[name] |= each
    set_beside(methods, study)
    for name, arrays in kept.items():
        if "collaboration" in arrays and "groups" in arrays:
            methods[name] |= block_scores(arrays["collaboration"][-1], arrays["groups"])
    for name, seeds in extras.items():
        most, improving = max(each["rounds_run"] for each in seeds), any(each["still_improving"] for each in seeds)
        methods[name] |= {"rounds_run": most, "still_improving": improving}
    trainings = {name: replace(study.training_of(name), rounds=methods[name]["rounds_run"]) for name in study.methods}
    for name, told in spent(study.methods, trainings, members).items():
        methods[name]["privacy"] = told
    together = spent_by_all(study.methods, trainings, members)
    alone = next((label for label, method in study.methods.items() if isinstance(method, Separate)), None)
    return {
        "study": study.name,
        "device": device_name(device),
        "versions": versions(study.plugins),
        **({"privacy": together} if together else {}),
        **judgement(methods, results, seen, kept, alone, sizes, by, [name for name in today if not pooled(name)]),
        "methods": methods,
        **({"baselines": today} if today else {}),
    }


def write(finished: Finished, out: Path, command: str) -> None:
    """The files of a finished study."""
    (out / "study.toml").write_text(finished.study.as_toml(), "utf-8")
    finished.results.to_parquet(out / RESULTS, index=False)
    finished.labels.to_parquet(out / "labels.parquet", index=False)
    if finished.splits is not None:
        finished.splits.to_parquet(out / "splits.parquet", index=False, compression="zstd")
    if len(finished.predictions):
        finished.predictions.to_parquet(out / "predictions.parquet", index=False, compression="zstd")
    summary = {"command": command, **finished.summary}
    (out / "summary.json").write_text(json.dumps(_finite(summary), indent=1, ensure_ascii=False) + "\n", "utf-8")
    (out / "collaboration").mkdir(exist_ok=True)
    for name, arrays in finished.traces.items():
        np.savez_compressed(out / "collaboration" / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    write_deployable(out, _finite(summary), finished.counts)
    if find_spec("plotly"):  # a training machine may lack it; the report can be made elsewhere from these files
        render(read_run(out), out / "report.html")


def rounds_run(outcome: Outcome, training: Training) -> dict[str, Any]:
    """How many rounds a method had, and whether more might have made it better: the best is among the last."""
    ran, picked = outcome.measured[-1], outcome.picked
    validated = picked is not None and picked.rank.validated > 0
    improving = picked is not None and validated and ran == training.rounds and ran - picked.round < LAST
    return {"rounds_run": ran, "still_improving": improving}


def predicted(method: str, seed: int, outcome: Outcome, facts: Facts) -> dict[Key, Rows]:
    """What the models of the picked round give for the members' rows, tempered; nothing where these are elsewhere."""
    found = dict[Key, Rows]()
    for split, by_silo in ({} if outcome.picked is None else outcome.picked.outputs).items():
        for silo, outputs in by_silo.items():
            if silo in facts.silos and outcome.picked is not None:
                part, schema = getattr(facts.silos[silo], split), facts.schemas.get(silo)
                rows = _rows(outcome.picked.round, part, outputs, schema)
                if silo in outcome.temperatures and rows.classes:
                    made = tempered(rows.predicted, outcome.temperatures[silo])
                    rows = replace(rows, predicted=made, raw=rows.predicted)
                threshold = outcome.thresholds.get(silo, 0.5)
                found[Key(method, seed, silo, split)] = replace(rows, threshold=threshold)
    return found


def _rows(round: int, part: Part, outputs: np.ndarray, schema: Schema | None) -> Rows:
    places = np.arange(len(part)) if part.rows is None else part.rows
    units = places if part.units is None else part.units
    if part.y.ndim > 1:
        return Rows(round, np.zeros(len(part)), outputs, places, units, plain=False)
    if outputs.ndim == 2:
        return Rows(round, part.y, outputs, places, units)
    unit, centre = (1.0, 0.0) if schema is None else (schema.unit, schema.centre)
    return Rows(round, part.y * unit + centre, outputs + centre, places, units)


def calibrate(outcome: Outcome, silos: Mapping[str, Silo], positive: int | str) -> None:
    """Find each silo's temperature and, of two classes, its threshold: on validation rows, of which nothing is trained.

    Without any, a model stays as it is.
    """
    outputs = {} if outcome.picked is None else outcome.picked.outputs.get("validation", {})
    known = {
        silo: (silos[silo].validation.y, p)
        for silo, p in outputs.items()
        if silo in silos and p.ndim == 2 and np.isfinite(p).all()
    }
    if not known:
        return
    outcome.temperatures = temperatures(
        {silo: curve(y, p) for silo, (y, p) in known.items()}, {silo: len(y) for silo, (y, _) in known.items()}
    )
    for silo, (y, p) in known.items():
        if p.shape[1] == 2:
            outcome.thresholds[silo] = best_threshold(*oriented(y, tempered(p, outcome.temperatures[silo]), positive))


def label_counts(silos: list[Silo], names: Sequence[str] = ()) -> pd.DataFrame:
    """How many training samples of each label every silo has, by the names of the labels where they have some."""
    parts = []
    for silo in silos:
        if silo.train.y.ndim == 1 and silo.train.y.dtype.kind in "iu":
            labels, counts = np.unique(silo.train.y, return_counts=True)
            shown = [names[label] for label in labels] if names else labels
            parts.append(pd.DataFrame({"silo": silo.name, "label": shown, "count": counts}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["silo", "label", "count"])


def split_rows(silos: Mapping[int, Sequence[Silo]]) -> pd.DataFrame | None:
    """What each row of own silos was for by seed, rows counted from 1 as errors do and in the order of samples."""
    parts = [
        pd.DataFrame({"seed": seed, "silo": silo.name, "row": part.rows + 1, "split": split})
        for seed, each in silos.items()
        for silo in each
        for split in SPLITS
        if (part := getattr(silo, split)).rows is not None
    ]
    return pd.concat(parts, ignore_index=True) if parts else None


def device_name(device: torch.device) -> str:
    """What the numbers were computed on."""
    if device.type == "cuda":
        return f"{device.type} ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({_threads()}, {platform.machine()})"


def _threads() -> str:
    count = torch.get_num_threads()
    return f"{count} thread{'s' * (count != 1)}"


def versions(plugins: Mapping[str, str]) -> dict[str, str]:
    """What the numbers were computed with."""
    return {
        "coterie": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        **plugins,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity: the loss of a model that diverged is null."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
