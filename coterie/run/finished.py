"""What a study that has run leaves: its summary, its tables and its report, in one folder."""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from coterie.data.own.agree import Difference
from coterie.data.silo import HoldsData, Silo
from coterie.engine.rounds import Outcome
from coterie.measure.blocks import block_scores
from coterie.measure.judgement import judgement
from coterie.measure.metrics import summarize
from coterie.methods.separate import Separate
from coterie.methods.wrappers.spent import spent, spent_by_all
from coterie.report.page import render
from coterie.run.beside import set_beside
from coterie.runs.checkpoint import traces_in
from coterie.runs.folder import RESULTS, checkpoint_folder, partial_results
from coterie.runs.read import read_run
from coterie.study.study import Study
from coterie.version import VERSION

COSTS = ("bytes_up", "bytes_down", "train_seconds", "missing", "rejected", "kept")
PREDICTED = ["method", "seed", "round", "silo", "sample", "value"]


@dataclass(frozen=True, repr=False)
class Finished(HoldsData):
    """A study that has run."""

    study: Study  # with everything written back
    results: pd.DataFrame
    summary: dict[str, Any]
    traces: dict[str, dict[str, np.ndarray]]  # of the first seed
    labels: pd.DataFrame
    predictions: pd.DataFrame  # every test sample at the picked round: right or wrong, or how far off
    differences: Sequence[Difference] = ()  # between the tables of own silos

    def about(self) -> str:
        return f"{self.study.name}: {', '.join(self.study.methods)}"


@dataclass(frozen=True)
class Facts:
    """What is known of the silos of a seed beside their scores."""

    groups: Mapping[str, int]  # of each member, where the data have such
    tested: Mapping[str, int]  # test samples of everyone, newcomers included


def collected(
    study: Study,
    out: Path,
    outcomes: Mapping[tuple[str, int], Outcome],
    facts: Mapping[int, Facts],
    device: torch.device,
    seconds: float,
) -> Finished:
    """What all methods on all seeds leave, from their outcomes and the journals in the folder of the run."""
    extras, kept = dict[str, list[dict[str, Any]]](), dict[str, dict[str, Any]]()
    samples = list[pd.DataFrame]()
    for place, ((name, seed), outcome) in enumerate(outcomes.items()):
        samples.append(predicted(outcome).assign(method=name, seed=seed))
        extras.setdefault(name, []).append({"seed": seed, **{key: getattr(outcome, key) for key in COSTS}})
        groups = facts[seed].groups
        if name not in kept and (found := traces_in(checkpoint_folder(out, place, name, seed))):
            kept[name] = {"silos": np.array(list(groups)), "groups": np.array(list(groups.values())), **found}
    whole, predictions = partial_results(out), pd.concat(samples, ignore_index=True)[PREDICTED]
    sizes = {seed: each.tested for seed, each in facts.items()}
    members = {seed: list(each.groups) for seed, each in facts.items()}
    summary = summarized(study, whole, predictions, kept, sizes, extras, members, device)
    return Finished(study, whole, {"seconds": seconds, **summary}, kept, label_counts([]), predictions)


def summarized(
    study: Study,
    results: pd.DataFrame,
    predictions: pd.DataFrame,
    kept: Mapping[str, Mapping[str, np.ndarray]],
    sizes: Mapping[int, Mapping[str, int]],
    extras: Mapping[str, Sequence[Mapping[str, Any]]],
    members: Mapping[int, Sequence[str]],
    device: torch.device,
) -> dict[str, Any]:
    """What `summary.json` holds."""
    methods = summarize(results, sizes, extras)
    set_beside(methods, study)
    for name, arrays in kept.items():
        if "collaboration" in arrays and "groups" in arrays:
            methods[name] |= block_scores(arrays["collaboration"][-1], arrays["groups"])
    trainings = {name: study.training_of(name) for name in study.methods}
    for name, told in spent(study.methods, trainings, members).items():
        methods[name]["privacy"] = told
    together = spent_by_all(study.methods, trainings, members)
    alone = next((label for label, method in study.methods.items() if isinstance(method, Separate)), None)
    return {
        "study": study.name,
        "device": device_name(device),
        "versions": versions(study.plugins),
        **({"privacy": together} if together else {}),
        **judgement(methods, results, predictions, kept, alone, sizes),
        "methods": methods,
    }


def write(finished: Finished, out: Path, command: str) -> None:
    """The files of a finished study."""
    (out / "study.toml").write_text(finished.study.as_toml(), "utf-8")
    finished.results.to_parquet(out / RESULTS, index=False)
    finished.labels.to_parquet(out / "labels.parquet", index=False)
    if len(finished.predictions):
        finished.predictions.to_parquet(out / "predictions.parquet", index=False, compression="zstd")
    summary = {"command": command, **finished.summary}
    (out / "summary.json").write_text(json.dumps(_finite(summary), indent=1, ensure_ascii=False) + "\n", "utf-8")
    (out / "collaboration").mkdir(exist_ok=True)
    for name, arrays in finished.traces.items():
        np.savez_compressed(out / "collaboration" / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    if find_spec("plotly"):  # a training machine may lack it; the report can be made elsewhere from these files
        render(read_run(out), out / "report.html")


def predicted(outcome: Outcome) -> pd.DataFrame:
    """Every test sample at the picked round; none where the silos do not tell."""
    if outcome.picked is None or not outcome.picked.samples:
        return pd.DataFrame(columns=["round", "silo", "sample", "value"])
    parts = [
        pd.DataFrame({"round": outcome.picked.round, "silo": silo, "sample": np.arange(len(each)), "value": each})
        for silo, each in outcome.picked.samples.items()
    ]
    return pd.concat(parts, ignore_index=True)


def label_counts(silos: list[Silo], names: Sequence[str] = ()) -> pd.DataFrame:
    """How many training samples of each label every silo has, by the names of the labels where they have some."""
    parts = []
    for silo in silos:
        if silo.train.y.ndim == 1 and silo.train.y.dtype.kind in "iu":
            labels, counts = np.unique(silo.train.y, return_counts=True)
            shown = [names[label] for label in labels] if names else labels
            parts.append(pd.DataFrame({"silo": silo.name, "label": shown, "count": counts}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["silo", "label", "count"])


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
