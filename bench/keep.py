"""What the pages of results are made of: `python bench/keep.py runs/NAME --out docs/results/runs`.

Of the folder of a finished run the small copy that tables and figures need: the study, scores, test accuracies, labels,
and where groups are known the last weights between silos. Where the run was written to is left out of its command, and
so is where a set's official files lay; an archive is named, since it may hold other data. A
method that is kept anew replaces what older folders of the same cell have of it with the same seeds.
"""

import argparse
import json
import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from page_figures import TRAJECTORIES

from coterie import toml
from coterie.data.npz import read_npz
from coterie.errors import BadInput
from coterie.studies.study import PUBLISHED

LEFT_OUT = {"verdict", "per_silo_cloud"}  # large, and on no page


def keep(run: Path, target: Path) -> None:
    """The small copy of one run."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / "labels.parquet", target / "labels.parquet")
    summary = rounded(json.loads((run / "summary.json").read_text("utf-8")))
    summary["command"] = re.sub(r" --(out \S+|quiet)", "", summary["command"])
    table = tomllib.loads((run / "study.toml").read_text("utf-8"))
    if (path := table["data"].get("path")) and not path.endswith(".npz"):
        table["data"]["path"] = ""
        summary["command"] = summary["command"].replace(f" --set data.path={path}", "")
    (target / "study.toml").write_text(toml.dumps(table), "utf-8")
    (target / "summary.json").write_text(json.dumps(summary, ensure_ascii=False) + "\n", "utf-8")
    results = pd.read_parquet(run / "results.parquet")
    shown = results[(results["split"] == "test") & results["measure"].str.startswith("accuracy")]
    shown = shown.assign(value=shown["value"].round(6)).reset_index(drop=True)
    shown.to_parquet(target / "results.parquet", compression="zstd")
    every = table["name"] in TRAJECTORIES
    for trace in sorted((run / "collaboration").glob("*.npz")):
        arrays = read_npz(trace)
        if "collaboration" in arrays and (every or len(set(arrays["groups"])) > 1):
            (target / "collaboration").mkdir(exist_ok=True)
            rounds = slice(None) if every else slice(-1, None)
            weights = arrays["collaboration"][rounds].astype(np.float32).round(4)
            kept = {"silos": arrays["silos"], "groups": arrays["groups"], "collaboration": weights}
            np.savez_compressed(target / "collaboration" / trace.name, **kept, rounds=arrays["rounds"][rounds])


def replace_older(target: Path) -> list[Path]:
    """Take from the folders beside a kept run what it has of the same cell; those that are changed or removed."""
    table, ran = _about(target)
    changed = []
    for folder in sorted(path for path in target.parent.iterdir() if path.is_dir() and path != target):
        other, theirs = _about(folder)
        if any(table.get(key) != other.get(key) for key in ("name", "cell", "scale")):
            continue
        twice = {method for method, seeds in theirs.items() if seeds & ran.get(method, set())}
        if partly := [method for method in twice if not theirs[method] <= ran[method]]:
            raise BadInput(f"{folder}: {partly[0]} has seeds that {target} has not; run these too, or keep neither")
        if twice:
            changed.append(folder)
            _without(folder, twice, theirs)
    return changed


def _about(folder: Path) -> tuple[dict[str, Any], dict[str, set[int]]]:
    """A kept run's study, and the seeds of each method."""
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    seeds = {method: {each["seed"] for each in scores["per_seed"]} for method, scores in summary["methods"].items()}
    return tomllib.loads((folder / "study.toml").read_text("utf-8")), seeds


def _without(folder: Path, methods: set[str], all_of: Mapping[str, Any]) -> None:
    """A kept run without some of its methods; without any it goes."""
    if methods >= all_of.keys():
        shutil.rmtree(folder)
        return
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    table = tomllib.loads((folder / "study.toml").read_text("utf-8"))
    for by_method in (summary["methods"], table["methods"], *(table.get(key, {}) for key in PUBLISHED)):
        for method in methods & by_method.keys():
            del by_method[method]
    summary["significance"] = [p for p in summary.get("significance") or [] if not {p["method"], p["other"]} & methods]
    (folder / "summary.json").write_text(json.dumps(summary, ensure_ascii=False) + "\n", "utf-8")
    (folder / "study.toml").write_text(toml.dumps(table), "utf-8")
    results = pd.read_parquet(folder / "results.parquet")
    results[~results["method"].isin(methods)].reset_index(drop=True).to_parquet(
        folder / "results.parquet", compression="zstd"
    )
    for method in methods:
        (folder / "collaboration" / f"{method}.npz").unlink(missing_ok=True)


def rounded(value: Any) -> Any:
    """Scores to four places, p-values left alone, and nothing of what is on no page."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in LEFT_OUT}
        return {key: each if key in ("p", "p_holm") else rounded(each) for key, each in kept.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def main() -> None:
    """Keep every run that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/runs"), help="where the copies go")
    given = parser.parse_args()
    for run in given.runs:
        keep(run, given.out / run.name)
        print(given.out / run.name)
        for folder in replace_older(given.out / run.name):
            print(f"  in place of what {folder} had")


if __name__ == "__main__":
    main()
