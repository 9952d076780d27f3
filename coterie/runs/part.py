"""Part of a run: one of its methods as a run of its own, and what was read as a folder again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd

from coterie import toml
from coterie.runs.folder import RESULTS
from coterie.runs.read import Run
from coterie.studies.study import PUBLISHED

COMPARED = ("verdict", "significance")  # what only several methods have


def of_method(run: Run, method: str) -> Run:
    """A run as if it had been of this method alone."""
    study = run.study
    for key in ("methods", *PUBLISHED):
        if key in study:
            study[key] = {label: each for label, each in study[key].items() if label == method}
    return replace(
        run,
        methods={method: run.methods[method]},
        results=run.results[run.results["method"] == method].reset_index(drop=True),
        traces={label: trace for label, trace in run.traces.items() if label == method},
        verdict=None,
        significance=None,
        about={**run.about, "toml": toml.dumps(study)},
    )


def copy(run: Run, folder: Path, out: Path) -> None:
    """The files of a run, or of the part of it that `run` is, from the folder where all of it is; not its report."""
    (out / "study.toml").write_text(str(run.about["toml"]), "utf-8")
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    summary["methods"] = {label: summary["methods"][label] for label in run.methods}
    summary = {key: each for key, each in summary.items() if key not in COMPARED or run.verdict is not None}
    (out / "summary.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", "utf-8")
    run.results.to_parquet(out / RESULTS, index=False)
    for name in ("labels.parquet", "splits.parquet"):
        if (folder / name).exists():
            shutil.copyfile(folder / name, out / name)
    for name in ("predictions.parquet", "subgroups.parquet"):
        if (folder / name).exists():
            rows = pd.read_parquet(folder / name)
            rows[rows["method"].isin(list(run.methods))].to_parquet(out / name, index=False, compression="zstd")
    if run.verdict is not None and (folder / "deploy").is_dir():
        shutil.copytree(folder / "deploy", out / "deploy")
    (out / "collaboration").mkdir()
    for base in (folder / "models").glob("*.safetensors"):  # what is frozen in all of them
        (out / "models").mkdir(exist_ok=True)
        shutil.copyfile(base, out / "models" / base.name)
    for label in run.methods:
        if label in run.traces:
            shutil.copyfile(folder / "collaboration" / f"{label}.npz", out / "collaboration" / f"{label}.npz")
        if (folder / "models" / label).is_dir():
            shutil.copytree(folder / "models" / label, out / "models" / label)
