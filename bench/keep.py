"""What the pages of results are made of: `python bench/keep.py runs/NAME --out docs/results/runs`.

Of the folder of a finished run the small copy that tables and figures need: the study, scores, test accuracies, labels,
and where groups are known the last weights between silos. Where the run was written to is left out of its command.
"""

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.npz import read_npz

LEFT_OUT = {"verdict", "per_silo_cloud", "memory"}  # large, and on no page


def keep(run: Path, target: Path) -> None:
    """The small copy of one run."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / "study.toml", target / "study.toml")
    shutil.copyfile(run / "labels.parquet", target / "labels.parquet")
    summary = rounded(json.loads((run / "summary.json").read_text("utf-8")))
    summary["command"] = re.sub(r" --(out \S+|quiet)", "", summary["command"])
    (target / "summary.json").write_text(json.dumps(summary, ensure_ascii=False) + "\n", "utf-8")
    results = pd.read_parquet(run / "results.parquet")
    shown = results[(results["split"] == "test") & results["measure"].str.startswith("accuracy")]
    shown = shown.assign(value=shown["value"].round(6)).reset_index(drop=True)
    shown.to_parquet(target / "results.parquet", compression="zstd")
    for trace in sorted((run / "collaboration").glob("*.npz")):
        arrays = read_npz(trace)
        if "collaboration" in arrays and len(set(arrays["groups"])) > 1:
            (target / "collaboration").mkdir(exist_ok=True)
            last = {**arrays, "collaboration": arrays["collaboration"][-1:].astype(np.float32).round(4)}
            kept = {name: last[name] for name in ("silos", "groups", "collaboration")}
            np.savez_compressed(target / "collaboration" / trace.name, **kept, rounds=arrays["rounds"][-1:])


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


if __name__ == "__main__":
    main()
