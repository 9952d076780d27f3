"""What the folder of a run holds, as the report, the figures and comparisons read it."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from pandas import DataFrame

from coterie.data.npz import read_npz
from coterie.errors import BadInput, nearest
from coterie.measure.measures import AUTO
from coterie.measure.metrics import ERRORS, plain_measure, silo_scores, summarize
from coterie.measure.significance import compare
from coterie.runs.checkpoint import traces_in
from coterie.runs.folder import UNFINISHED, Begun, checkpoint_folder, partial_results

Array = np.ndarray[Any, Any]
# Null in these is what JSON lacks: infinity.
NEVER_NULL = tuple(f"{score}_{error}" for score in ("best", "last", "weighted", "bottom_decile") for error in ERRORS)

ABOUT = ("command", "device", "versions", "privacy", "measure", "samples")


@dataclass(frozen=True, repr=False)
class Run:
    """A study that has run, or is running."""

    name: str
    methods: Mapping[str, Mapping[str, Any]]  # the scores of each, in the study's order
    results: DataFrame
    traces: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    labels: DataFrame | None = None
    verdict: Mapping[str, Any] | None = None
    significance: DataFrame | None = None
    about: Mapping[str, Any] = field(default_factory=dict)  # what `ABOUT` lists, and toml
    differences: Sequence[str] = ()  # between the tables of own silos, a line each
    flattering: Mapping[str, str] = field(default_factory=dict)  # by column the first that makes scores look better
    finished: bool = True
    data: Mapping[str, Any] = field(default_factory=dict)  # the study's [data]
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # plain models, each with its measures
    subgroups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by column and level
    folder: Path | None = None  # where its files are
    metric: str | None = None  # to look at it by, where that is another than it was judged by

    def __repr__(self) -> str:
        return f"Run({self.name}: {', '.join(self.methods)})"

    @property
    def study(self) -> dict[str, Any]:
        """The study's table."""
        return tomllib.loads(str(self.about.get("toml", "")))

    @property
    def own(self) -> bool:
        """Whether its silos came with data of their own, here or each at its place, and were not dealt a set."""
        return self.data.get("name") == "silos" or "standardize" in self.data

    @property
    def by(self) -> str | None:
        """The measure that its methods are shown by; None: accuracy, or an error."""
        if self.metric is not None:
            return self.metric
        return str(self.verdict["measure"]) if self.verdict else None

    def seen_by(self, metric: str | None) -> "Run":
        """The same by a measure that all its methods have, and with it the significance of their differences."""
        if metric is None:
            return self
        known = {plain_measure(self.methods): 0}  # in the order of the summary
        known |= dict.fromkeys(name for each in self.methods.values() for name in each.get("measures", {}))
        found, scores = silo_scores(self.methods, metric) if metric in known else ("", {})
        if found != metric:
            raise BadInput(f"--metric {metric}: {self.name} was not measured by it; {nearest(metric, known)}")
        pairs = compare(scores).assign(measure=metric) if self.significance is not None else None
        return replace(self, metric=metric, significance=pairs)

    def predictions(self, methods: Sequence[str]) -> DataFrame:
        """The test rows at the picked round of these methods, first seed, whose models are saved; maybe none."""
        path = None if self.folder is None else self.folder / "predictions.parquet"
        if path is None or not path.exists():
            return DataFrame()
        try:
            if "split" not in pq.read_schema(path).names:  # of a version that kept right and wrong alone
                return DataFrame()
            seed = int(self.results["seed"].iloc[0])
            kept = [("method", "in", list(methods)), ("seed", "==", seed), ("split", "==", "test")]
            return pd.read_parquet(path, filters=kept)
        except (OSError, ValueError) as error:
            raise BadInput(f"{path}: damaged ({error!r:.200}); run the study again") from None


def read_run(folder: Path) -> Run:
    """The run in a folder, finished or not."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; give the folder of a run, as `coterie run --out` made it")
    if not (folder / "summary.json").exists():
        if (folder / UNFINISHED).exists():
            return so_far(folder, Begun.read(folder))
        raise BadInput(f"{folder}: no summary.json in it; give the folder of a run, as `coterie run --out` made it")
    try:
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        toml = (folder / "study.toml").read_text("utf-8")
        data = tomllib.loads(toml).get("data", {})
        results = pd.read_parquet(folder / "results.parquet")
        labels = _labels(folder / "labels.parquet")
        own = summary.get("data") or {}
        methods = {str(name): _scores(scores) for name, scores in summary["methods"].items()}
        return Run(
            str(summary["study"]),
            methods,
            results,
            {name: read_npz(trace) for name in methods if (trace := folder / "collaboration" / f"{name}.npz").exists()},
            labels,
            _current(summary.get("verdict")),
            DataFrame(summary["significance"]) if summary.get("significance") else None,
            {**{key: summary.get(key) for key in ABOUT}, "toml": toml},
            [_line(each) for each in own.get("differences", ())],
            {each["column"]: _line(each) for each in own.get("differences", [])[::-1] if each.get("flatters")},
            data=data,
            baselines=summary.get("baselines") or {},
            subgroups=summary.get("subgroups") or {},
            folder=folder,
        )
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror or error}; give the folder of a finished run") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{folder}: damaged ({error!r:.200}); run the study again") from None


def _labels(path: Path) -> DataFrame | None:
    """What the silos hold with the first seed; an older version kept no other."""
    if not path.exists():
        return None
    labels = pd.read_parquet(path)
    return labels[labels["seed"] == labels["seed"].iloc[0]] if "seed" in labels and len(labels) else labels


def so_far(folder: Path, begun: Begun) -> Run:
    """A run that is going on, or was stopped: what its journals hold."""
    study = tomllib.loads(begun.study)
    results = partial_results(folder)
    results = results[results["method"].isin(study["methods"])]
    # How much test data each silo has is written at the end only, so until then no score is weighted by it.
    sizes = {int(seed): dict.fromkeys(results["silo"].unique(), 1) for seed in results["seed"].unique()}
    methods = {
        name: {key: value for key, value in scores.items() if not key.startswith("weighted")}
        for name, scores in (summarize(results, sizes, {}) if len(results) else {}).items()
    }
    traces = {}
    for place, (name, seed) in enumerate(product(study["methods"], seeds_of(study))):
        kept = checkpoint_folder(folder, place, name, seed)
        if name in methods and name not in traces and kept.exists() and (found := traces_in(kept)):
            silos = results.loc[(results["method"] == name) & (results["round"] == 0), "silo"].unique()
            traces[name] = {"silos": silos.astype(str), **found}
    about = {"toml": begun.study, "command": begun.command, "device": begun.machine.get("device")}
    return Run(str(study["name"]), methods, results, traces, about=about, finished=False, data=study.get("data", {}))


def _current(verdict: Any) -> Any:
    """A verdict, or None where an older version wrote it: it judged by other rules."""
    return verdict if isinstance(verdict, Mapping) and "title" in verdict else None


def seeds_of(study: Mapping[str, Any]) -> list[int]:
    """Those of a study; of one that has yet to choose them the first."""
    seeds = study.get("seeds", [0])
    return [0] if seeds == AUTO else [int(seed) for seed in seeds]


def _line(difference: Mapping[str, Any]) -> str:
    """A difference between the tables of own silos."""
    return f"{difference['column']}, {difference['silo']}: {difference['what']}"


def _scores(scores: Mapping[str, Any]) -> dict[str, Any]:
    """A method's scores, with the infinite losses that JSON cannot hold."""
    restored = dict(scores)
    for key in NEVER_NULL:
        if key in restored and restored[key] is None:
            restored[key] = math.inf
    for key in ("per_silo", "per_silo_picked"):
        kept = scores.get(key, scores["per_silo"])  # a run from before they were kept apart has the best round's alone
        restored[key] = {str(k): math.inf if v is None else float(v) for k, v in kept.items()}
    return restored
