"""An even search: every method of a study with every learning rate, the best picked on validation data.

    python bench/tune.py STUDY --lr 0.1,0.3,1,3,10 [--workers 2] [--out FOLDER] [-- any option of coterie run]

Test data are not looked at. The table it prints and writes to FOLDER/tuned.json holds the best validation accuracy over
rounds (mean over silos) of every pair.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from coterie.studies import study as studies


def validated(study: str, seed: int, others: list[str], folder: Path, pair: tuple[str, float]) -> float:
    """The best validation accuracy over rounds of one method with one learning rate."""
    method, lr = pair
    out = folder / f"{method}-{lr:g}"
    own = ["--set", f"methods.{method}.train.lr={lr!r}", "--seeds", str(seed), "--out", str(out), "--quiet"]
    command = [sys.executable, "-m", "coterie", "run", study, "--methods", method, *own, *others]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    results = pd.read_parquet(out / "results.parquet")
    mine = results[(results["split"] == "validation") & (results["measure"] == "accuracy")]
    return 100 * float(mine.groupby("round")["value"].mean().max())


def write(scores: dict[tuple[str, float], float], out: Path) -> None:
    """What is known so far, by method and learning rate."""
    out.mkdir(parents=True, exist_ok=True)
    cells: dict[str, dict[str, float]] = {}
    for (method, lr), score in scores.items():
        cells.setdefault(method, {})[f"{lr:g}"] = score
    (out / "tuned.json").write_text(json.dumps(cells, indent=1) + "\n")


def main() -> None:
    """Search, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--lr", default="0.1,0.3,1,3,10")
    parser.add_argument("--methods")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options, others = parser.parse_known_args()
    rates = [float(lr) for lr in options.lr.split(",")]
    known = studies.read(options.study)["methods"]
    methods = options.methods.split(",") if options.methods else list(known)
    pairs = [(method, lr) for method in methods for lr in rates]
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as bar:
        shown = bar.add_task("runs", total=len(pairs))
        measured = partial(validated, options.study, options.seed, [o for o in others if o != "--"], Path(folder))
        with ThreadPoolExecutor(options.workers) as pool:
            scores = {}
            for pair, score in zip(pairs, pool.map(measured, pairs), strict=True):
                scores[pair] = score
                bar.advance(shown)
                write(scores, options.out)
    table = Table("method", *(f"lr {lr:g}" for lr in rates), "picked")
    for method in methods:
        mine = [scores[method, lr] for lr in rates]
        table.add_row(method, *(f"{score:.2f}" for score in mine), f"{rates[mine.index(max(mine))]:g}")
    console.print(table)


if __name__ == "__main__":
    main()
