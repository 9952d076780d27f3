"""What the folder of a run holds, as the report, the figures and comparisons read it."""

import json
import math
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from coterie.errors import BadInput

Array = np.ndarray[Any, Any]
NEVER_NULL = ("best_loss", "last_loss", "weighted_loss", "bottom_decile_loss")  # so null is what JSON lacks: infinity


@dataclass(frozen=True)
class Run:
    """A study that has run, or is running."""

    name: str
    methods: Mapping[str, Mapping[str, Any]]  # the scores of each, in the study's order
    results: DataFrame
    traces: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    labels: DataFrame | None = None
    verdict: Mapping[str, Any] | None = None
    significance: DataFrame | None = None
    about: Mapping[str, Any] = field(default_factory=dict)  # command, toml, device, versions

    @property
    def study(self) -> dict[str, Any]:
        """The study's table."""
        return tomllib.loads(str(self.about.get("toml", "")))


def read_run(folder: Path) -> Run:
    """The run in a folder."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; give the folder of a run, as `coterie run --out` made it")
    if not (folder / "summary.json").exists():
        raise BadInput(f"{folder}: no summary.json in it; give the folder of a finished run")
    try:
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        toml = (folder / "study.toml").read_text("utf-8")
        tomllib.loads(toml)
        results = pd.read_parquet(folder / "results.parquet")
        labels = pd.read_parquet(folder / "labels.parquet") if (folder / "labels.parquet").exists() else None
        methods = {str(name): _scores(scores) for name, scores in summary["methods"].items()}
        return Run(
            str(summary["study"]),
            methods,
            results,
            {name: trace for name in methods if (trace := _trace(folder / "collaboration" / f"{name}.npz"))},
            labels,
            summary.get("verdict"),
            DataFrame(summary["significance"]) if summary.get("significance") else None,
            {**{key: summary.get(key) for key in ("command", "device", "versions")}, "toml": toml},
        )
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror or error}; give the folder of a finished run") from None
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise BadInput(f"{folder}: damaged ({error!r:.200}); run the study again") from None


def _scores(scores: Mapping[str, Any]) -> dict[str, Any]:
    """A method's scores, with the infinite losses that JSON cannot hold."""
    restored = dict(scores)
    for key in NEVER_NULL:
        if key in restored and restored[key] is None:
            restored[key] = math.inf
    restored["per_silo"] = {str(k): math.inf if v is None else float(v) for k, v in scores["per_silo"].items()}
    return restored


def _trace(path: Path) -> dict[str, Array]:
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}
