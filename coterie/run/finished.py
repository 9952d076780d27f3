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
from coterie.data.silo import HoldsData, Silo
from coterie.engine.rounds import Outcome
from coterie.engine.store import SPLITS
from coterie.engine.training import Training
from coterie.measure.blocks import block_scores
from coterie.measure.judgement import judgement
from coterie.measure.metrics import summarize
from coterie.measure.predictions import Key, Predictions, Rows, as_frame, measured, reported
from coterie.measure.subgroups import Place, as_table, subgroups
from coterie.measure.tempering import can_calibrate, curve, cut_of, moved, temperatures, tempered
from coterie.methods import innermost, learned, level_of
from coterie.methods.separate import Separate
from coterie.methods.stack import Stack
from coterie.methods.wrappers.spent import Members, Searched, spent, spent_by_all
from coterie.run.baselines import pooled, rows_of
from coterie.run.beside import set_beside
from coterie.run.deployable import write_deployable
from coterie.runs.checkpoint import traces_in
from coterie.runs.folder import RESULTS, checkpoint_folder, partial_results
from coterie.runs.read import read_run
from coterie.studies.study import Study
from coterie.version import VERSION, commit

COSTS = ("bytes_up", "bytes_down", "train_seconds", "missing", "rejected", "kept")
TUNING = "tuning.parquet"  # all that a search tried, in a run's folder
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
    subgroups: pd.DataFrame | None = None  # measures by the levels of columns that were asked for

    def about(self) -> str:
        return f"{self.study.name}: {', '.join(self.study.methods)}"


@dataclass(frozen=True)
class Facts:
    """What is known of the silos of a seed beside their scores."""

    groups: Mapping[str, int]  # of each member, where the data have such
    tested: Mapping[str, int]  # test samples of everyone, newcomers included
    silos: Mapping[str, Silo] = field(default_factory=dict)  # the members, where their data are here
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    trained: Mapping[str, int] = field(default_factory=dict)  # training samples of members whose data are elsewhere

    def sizes(self) -> dict[str, int]:
        """The training samples of each member."""
        return {name: len(self.silos[name].train) if name in self.silos else self.trained[name] for name in self.groups}

    def samples(self) -> dict[str, dict[str, int]]:
        """How many samples everyone has in each split, or in the test split alone where their data are elsewhere."""
        here = {name: _sizes(silo) for name, silo in self.silos.items()}
        return {name: here.get(name, {"test": n}) for name, n in self.tested.items()}


def _sizes(silo: Silo) -> dict[str, int]:
    return {split: len(getattr(silo, split)) for split in SPLITS}


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
    members = {seed: each.sizes() for seed, each in facts.items()}
    fitted = dict[str, dict[str, Any]]()
    for (name, _), outcome in outcomes.items():  # those of the first seed, whose models are kept
        keys = ("temperatures", "thresholds", "mixtures", "gated", "refit_rounds", "distilled")
        fitted.setdefault(name, {key: each for key in keys if (each := getattr(outcome, key))})
    tried = pd.read_parquet(out / TUNING) if (out / TUNING).exists() else None
    searched = {} if tried is None else _searched(tried)
    summary = summarized(study, whole, predictions, kept, sizes, extras, members, device, fitted, searched)
    for name, found in ({} if tried is None else _at_edges(tried, study)).items():
        summary["methods"][name]["rate_at_edge"] = found
    summary["samples"] = {str(seed): each.samples() for seed, each in facts.items()}
    parts = _subgroups(predictions, facts, study)
    summary |= {} if parts is None else {"subgroups": as_table(parts, study.training.by)}
    first = next(iter(facts.values()))
    frame = as_frame(predictions, next(iter(first.schemas.values())).classes if first.schemas else ())
    counts = {name: _sizes(silo) for name, silo in first.silos.items()}
    summary = {"seconds": seconds, **summary}
    return Finished(study, whole, summary, kept, label_counts({}), frame, counts=counts, subgroups=parts)


def _subgroups(predictions: Predictions, facts: Mapping[int, Facts], study: Study) -> pd.DataFrame | None:
    """Every measure by the levels of columns, where the study asks for them."""
    columns = dict[str, dict[Place, np.ndarray]]()
    for seed, each in facts.items():
        for name, silo in each.silos.items():
            for column, values in silo.subgroups.items():
                columns.setdefault(column, {})[seed, name] = values
    seen = {key: rows.seen_from(study.training.positive) for key, rows in predictions.items()}
    return subgroups(seen, columns, study.training.by) if columns else None


def summarized(
    study: Study,
    results: pd.DataFrame,
    predictions: Predictions,
    kept: Mapping[str, Mapping[str, np.ndarray]],
    sizes: Mapping[int, Mapping[str, int]],
    extras: Mapping[str, Sequence[Mapping[str, Any]]],
    members: Members,
    device: torch.device,
    fitted: Mapping[str, Mapping[str, Any]],
    searched: Searched,
) -> dict[str, Any]:
    """What `summary.json` holds."""
    by, positive = study.training.by, study.training.positive
    methods = summarize(results, sizes, extras, by)
    seen = {key: rows.seen_from(positive) for key, rows in predictions.items()}
    taken = dict(measured(seen, [*next(iter(members.values()))], by)) or reported(results, methods)
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
    trainings = {name: study.training_of(name) for name in study.methods}
    ran = {name: methods[name]["rounds_run"] for name in study.methods}
    for name, about in spent(study.methods, trainings, members, searched, ran).items():
        methods[name]["privacy"] = about
    for name, method in study.methods.items():
        if (level := level_of(method)) is not None:
            methods[name]["secure"] = {"level": level, "server_learns": learned(level, method)}
    together = spent_by_all(study.methods, trainings, members, searched, ran)
    alone = next((label for label, method in study.methods.items() if isinstance(method, Separate)), None)
    flattered = [label for label, method in study.methods.items() if method.learns_from_validation]
    stacks = {label: inner for label, each in study.methods.items() if isinstance(inner := innermost(each), Stack)}
    mixtures = [label for label, stack in stacks.items() if not stack.distil]
    alike = [name for name in today if not pooled(name)]
    return {
        "study": study.name,
        "device": device_name(device),
        "versions": versions(study.plugins),
        "commit": commit(),
        **({"privacy": together} if together else {}),
        **judgement(methods, results, seen, kept, alone, sizes, by, alike, flattered, mixtures),
        "methods": methods,
        **({"baselines": today} if today else {}),
    }


def _searched(tried: pd.DataFrame) -> Searched:
    """By method, for how many rounds each candidate of its search trained."""
    table = tried.drop(columns="score")
    candidates = table.groupby([name for name in table if name != "round"])["round"].max()
    return {str(name): [int(rounds) for rounds in each] for name, each in candidates.groupby("method")}


def _at_edges(tried: pd.DataFrame, study: Study) -> dict[str, dict[str, Any]]:
    """By method the rate that its search took, where that is the smallest or the largest it tried."""
    found = dict[str, dict[str, Any]]()
    for label in study.methods:
        training = study.training_of(label)
        rates = tried[(tried["method"] == label) & (tried["optimizer"] == training.optimizer)]["lr"]
        for end, rate in (("smallest", rates.min()), ("largest", rates.max())):
            if rates.nunique() > 1 and rate == training.lr:
                found[label] = {"optimizer": training.optimizer, "lr": training.lr, "end": end}
    return found


def write(finished: Finished, out: Path, command: str) -> None:
    """The files of a finished study."""
    (out / "study.toml").write_text(finished.study.as_toml(), "utf-8")
    finished.results.to_parquet(out / RESULTS, index=False)
    finished.labels.to_parquet(out / "labels.parquet", index=False)
    if finished.splits is not None:
        finished.splits.to_parquet(out / "splits.parquet", index=False, compression="zstd")
    if finished.subgroups is not None:
        finished.subgroups.to_parquet(out / "subgroups.parquet", index=False)
    if len(finished.predictions):
        finished.predictions.to_parquet(out / "predictions.parquet", index=False, compression="zstd")
    summary = {"command": command, **finished.summary}
    (out / "summary.json").write_text(json.dumps(_finite(summary), indent=1, ensure_ascii=False) + "\n", "utf-8")
    (out / "collaboration").mkdir(exist_ok=True)
    for name, arrays in finished.traces.items():
        np.savez_compressed(out / "collaboration" / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    write_deployable(out, _finite(summary), finished.counts)
    if find_spec("plotly"):  # a training machine may lack it; the report can be made elsewhere from these files
        from coterie.report.page import render

        render(read_run(out), out / "report.html")


def rounds_run(outcome: Outcome, training: Training) -> dict[str, Any]:
    """How many rounds a method had, and whether more might have made it better: the best is among the last."""
    ran, picked = outcome.measured[-1], outcome.picked
    validated = picked is not None and picked.pick.rank.validated > 0
    improving = picked is not None and validated and ran == training.rounds and ran - picked.round < LAST
    return {"rounds_run": ran, "still_improving": improving}


def predicted(method: str, seed: int, outcome: Outcome, facts: Facts) -> dict[Key, Rows]:
    """What the models of the picked round give for the members' rows, tempered; nothing where these are elsewhere."""
    found = dict[Key, Rows]()
    for split, by_silo in ({} if outcome.picked is None else outcome.picked.outputs).items():
        for silo, outputs in by_silo.items():
            if silo in facts.silos and outcome.picked is not None:
                part, schema = getattr(facts.silos[silo], split), facts.schemas.get(silo)
                rows = rows_of(outcome.picked.round, part, outputs, schema)
                if outcome.temperatures and rows.classes:  # one that has diverged has none of its own
                    at = outcome.temperatures.get(silo, 1.0)
                    rows = replace(rows, predicted=tempered(rows.predicted, at), raw=rows.predicted, temperature=at)
                found[Key(method, seed, silo, split)] = replace(rows, threshold=outcome.thresholds.get(silo, 0.5))
    return found


def calibrate(outcome: Outcome, silos: Mapping[str, Silo], positive: int | str) -> None:
    """Find each silo's temperature and, of two classes, its threshold: on validation rows, of which nothing is trained.

    Without any, a model stays as it is.
    """
    outputs = {} if outcome.picked is None else outcome.picked.outputs.get("validation", {})
    known = {silo: (silos[silo].validation.y, p) for silo, p in outputs.items() if silo in silos}
    known = {silo: rows for silo, rows in known.items() if can_calibrate(*rows)}
    if not known:
        return
    outcome.temperatures = temperatures(
        {silo: curve(y, p) for silo, (y, p) in known.items()}, {silo: len(y) for silo, (y, _) in known.items()}
    )
    for silo, (y, p) in known.items():
        if (cut := cut_of(y, p, positive)) is not None:
            outcome.thresholds[silo] = moved(cut, outcome.temperatures[silo])


def label_counts(silos: Mapping[int, Sequence[Silo]], names: Sequence[str] = ()) -> pd.DataFrame:
    """How many training samples of each label every silo has, by seed; labels by their names if they have some."""
    parts = []
    for seed, silo in ((seed, silo) for seed, each in silos.items() for silo in each):
        if silo.train.y.ndim == 1 and silo.train.y.dtype.kind in "iu":
            labels, counts = np.unique(silo.train.y, return_counts=True)
            shown = [names[label] for label in labels] if names else labels
            parts.append(pd.DataFrame({"silo": silo.name, "label": shown, "count": counts, "seed": seed}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["silo", "label", "count", "seed"])


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
    threads = torch.get_num_threads()
    return f"{device.type} ({threads} thread{'s' * (threads != 1)}, {platform.machine()})"


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
