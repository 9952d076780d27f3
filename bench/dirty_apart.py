"""Silos with clean and with dirty labels apart, where a run has both."""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from finished_runs import Cell

from coterie.data.corrupt import dirty_silos
from coterie.data.npz import read_npz
from coterie.measure.blocks import within_group

PARTS = {"accuracy": "", "accuracy_cloud": " (cloud)"}
HEAD = ["method", "clean: best round", "clean: last", "dirty: best round", "dirty: last"]


def accuracies(cell: Cell) -> list[list[str]]:
    """The best of the rounds and the last, means over silos of each kind and then over seeds."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for folder, table in zip(cell.folders, cell.tables, strict=True):
        for (method, measure, seed), run in _tested(folder).groupby(["method", "measure", "seed"], sort=False):
            dirty = _dirty(table, int(seed), run["silo"].drop_duplicates())
            rounds = 100 * run.groupby(["round", run["silo"].map(dirty)])["value"].mean().unstack()
            values = [value for kind in (False, True) for value in (rounds[kind].max(), rounds[kind].iloc[-1])]
            found.setdefault((method, measure), []).append(values)
    means = {run: [f"{statistics.mean(seeds):.1f}" for seeds in zip(*found[run], strict=True)] for run in found}
    shown = [(method, measure) for method in cell.methods() for measure in PARTS if (method, measure) in found]
    return [[method + PARTS[measure], *means[method, measure]] for method, measure in shown]


def weights(cell: Cell) -> list[str]:
    """From whom clean and dirty silos take: a sentence for each method that weighs silos, of the first folder."""
    sentences = []
    for trace in sorted((cell.folders[0] / "collaboration").glob("*.npz")):
        arrays = read_npz(trace)
        matrix, silos = np.array(arrays["collaboration"][-1], dtype=float), [str(silo) for silo in arrays["silos"]]
        dirty = np.array(list(_dirty(cell.tables[0], cell.seeds(trace.stem)[0], silos).values()))
        own = 100 * within_group(matrix, arrays["groups"])
        np.fill_diagonal(matrix, 0)
        from_dirty = 100 * matrix[:, dirty].sum(1) / matrix.sum(1)
        sentences += [
            f"{trace.stem}: {kind} silos take {from_dirty[rows].mean():.1f}% of it from dirty ones, "
            f"{own[rows].mean():.1f}% from their own group"
            for kind, rows in (("clean", ~dirty), ("dirty", dirty))
        ]
    return sentences


def _dirty(table: dict[str, Any], seed: int, silos: Any) -> dict[str, bool]:
    return dict(zip(silos, dirty_silos(len(silos), table["data"]["dirty"], seed), strict=True))


def _tested(folder: Path) -> Any:
    results = pd.read_parquet(folder / "results.parquet")
    return results[(results["split"] == "test") & results["measure"].isin(PARTS)]
