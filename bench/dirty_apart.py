"""Silos with clean and with dirty labels apart, where a run has both."""

import statistics
from pathlib import Path
from typing import Any

import pandas as pd
from finished_runs import Cell

from coterie.data.corrupt import dirty_silos

PARTS = {"accuracy": "", "accuracy_cloud": " (cloud)"}


def dirty_apart(cell: Cell) -> tuple[list[str], list[list[str]]] | None:
    """A table: the best of the rounds and the last, means over silos of each kind and then over seeds."""
    if not cell.tables[0]["data"].get("dirty"):
        return None
    found: dict[tuple[str, str], list[list[float]]] = {}
    for folder, table, summary in zip(cell.folders, cell.tables, cell.summaries, strict=True):
        for (method, measure, seed), run in _accuracies(folder).groupby(["method", "measure", "seed"], sort=False):
            silos = list(summary["methods"][method]["per_silo"])
            dirty = dict(zip(silos, dirty_silos(len(silos), table["data"]["dirty"], int(seed)), strict=True))
            rounds = 100 * run.groupby(["round", run["silo"].map(dirty)])["value"].mean().unstack()
            values = [value for kind in (False, True) for value in (rounds[kind].max(), rounds[kind].iloc[-1])]
            found.setdefault((method, measure), []).append(values)
    means = {run: [f"{statistics.mean(seeds):.1f}" for seeds in zip(*found[run], strict=True)] for run in found}
    shown = [(method, measure) for method in cell.methods() for measure in PARTS if (method, measure) in found]
    rows = [[method + PARTS[measure], *means[method, measure]] for method, measure in shown]
    return ["method", "clean: best round", "clean: last", "dirty: best round", "dirty: last"], rows


def _accuracies(folder: Path) -> Any:
    results = pd.read_parquet(folder / "results.parquet")
    return results[(results["split"] == "test") & results["measure"].isin(PARTS)]
