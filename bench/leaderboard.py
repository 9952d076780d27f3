"""All methods on all studies that were run, on one page: `python bench/leaderboard.py docs/results/runs/*`.

Every figure is the test accuracy at the round that validation data picked: a mean over silos, then over seeds. A column
holds the runs of one cell of a study that had the same data, model and rounds: its head says how many of the study's
rounds, and names what else was not the study's where a pointer rests on it. In each column methods have ranks, and
whether one is behind the best is a Wilcoxon signed-rank test over the silos (their means over the seeds that both were
run with), with Holm's correction over the column's methods. Figures that are faint are behind the best of their column;
small numbers are ranks, and seeds where others have more. Columns sort by a click on their head.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from finished_runs import Cell, built_in, differences, read

from coterie.measure.significance import ALPHA, holm, signed_rank

Board = Mapping[str, Mapping[str, Sequence["Place"]]]  # by study and column
PLACES = """A mean place is 0 for whoever is first in every column that it is in and 1 for whoever is last. Columns
differ in their rounds and in the methods that are there, and a place in few of them says little: compare methods that
share many columns, and look at those."""
ROUNDING = 1e-3  # of kept scores, in percent
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
:root { color-scheme: light dark }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #8884 }
th:first-child { text-align: left; position: sticky; left: 0; z-index: 1; background: Canvas; white-space: nowrap }
small { white-space: nowrap }
thead th { vertical-align: bottom }
thead button { all: unset; cursor: pointer; font-weight: 600 }
thead button:hover { text-decoration: underline }
thead button:focus-visible { outline: 2px solid }
thead small { display: block; font-weight: 400 }
[aria-sort="ascending"] button::after { content: " ↑" }
[aria-sort="descending"] button::after { content: " ↓" }
.behind { opacity: .6 }
"""
SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "ascending" : "up" in head.dataset;
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const apart = isNaN(x) ? x.localeCompare(y) : x - y;
        return up ? apart : -apart;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}
"""


@dataclass(frozen=True)
class Place:
    """One method in one column."""

    method: str
    score: float
    seeds: int
    rank: int
    p: float  # against the best, corrected; 1 for the best itself

    @property
    def behind(self) -> bool:
        """Whether it is unlikely to be chance that the best is better."""
        return self.p < ALPHA


def places(cell: Cell) -> list[Place]:
    """The methods of a cell that were measured with validation data, the best first."""
    scored = {method: cell.values(method, "val_picked") for method in cell.methods()}
    means = {method: statistics.mean(values) for method, values in scored.items() if values}
    order = sorted(means, key=lambda method: -means[method])
    silos = per_silo(cell, order)
    found = [signed_rank(apart(silos[order[0]], silos[other])) for other in order[1:]]
    corrected = dict(zip(order[1:], holm(np.array(found)), strict=True))
    return [
        Place(
            method,
            means[method],
            len(scored[method]),
            1 + sum(round(other, 2) > round(means[method], 2) for other in means.values()),
            float(corrected.get(method, 1.0)),
        )
        for method in order
    ]


def comparable(cell: Cell) -> list[Cell]:
    """A cell's runs apart where they had other data, another model or other rounds, the longest first."""
    found: dict[tuple[int, str], Cell] = {}
    for folder, table, summary in zip(cell.folders, cell.tables, cell.summaries, strict=True):
        found.setdefault((table["train"]["rounds"], otherwise(table)), Cell(cell.name)).add(folder, table, summary)
    return [found[key] for key in sorted(found, reverse=True)]


def otherwise(table: Mapping[str, Any]) -> str:
    """What a run had of data and model otherwise than its study."""
    return "; ".join(each for each in differences(table, table["methods"]) if each.startswith(("data.", "model.")))


def column(cell: Cell) -> str:
    """The head of such runs: how long they were, how long the study is, and on hover what else they had otherwise."""
    table = cell.tables[0]
    rounds = table["train"]["rounds"]
    whole = built_in(table).get("train", {}).get("rounds", rounds)
    length = f"{rounds} of {whole} rounds" if rounds < whole else f"{rounds} rounds"
    return f'<span title="{escape(otherwise(table))}">{escape(cell.name or "all")}<small>{length}</small></span>'


def per_silo(cell: Cell, methods: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Of each method the test accuracies at the picked rounds: silos × seeds."""
    found: dict[str, dict[int, pd.Series]] = {method: {} for method in methods}
    for folder, summary in zip(cell.folders, cell.summaries, strict=True):
        table = pd.read_parquet(folder / "results.parquet")
        table = table[(table["split"] == "test") & (table["measure"] == "accuracy")]
        by_round = 100 * table.pivot(index=["method", "seed", "round"], columns="silo", values="value")
        for method in found.keys() & summary["methods"].keys():
            for each in summary["methods"][method]["per_seed"]:
                found[method][each["seed"]] = _picked(by_round.loc[(method, each["seed"])], each["val_picked"])
    return {method: pd.DataFrame(seeds) for method, seeds in found.items()}


def _picked(by_round: pd.DataFrame, score: float) -> pd.Series:
    """The accuracies by silo of the picked round: the first with that score, for kept runs do not name it."""
    return by_round.loc[(by_round.mean(axis=1) - score).abs().lt(ROUNDING).idxmax()]


def apart(one: pd.DataFrame, other: pd.DataFrame) -> np.ndarray:
    """How far each silo's mean is ahead with one of two methods, over the seeds that both were run with."""
    seeds = one.columns.intersection(other.columns)
    return (one[seeds].mean(axis=1) - other[seeds].mean(axis=1)).dropna().to_numpy()


def page(found: Mapping[str, Mapping[str, Cell]]) -> str:
    """The page, in HTML: one file that opens without a network."""
    board = {
        name: {column(runs): places(runs) for cell in cells.values() for runs in comparable(cell)}
        for name, cells in found.items()
    }
    about = " ".join((__doc__ or "").split("\n\n")[1].split())
    parts = [f"<h1>Leaderboard</h1><p>{escape(about)}</p>", "<h2>All studies</h2>", f"<p>{PLACES}</p>", overall(board)]
    for name, cells in board.items():
        parts += [f"<h2>{escape(name)}</h2>", matrix(cells)]
    head = ['<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Leaderboard</title>']
    head += ['<meta name="viewport" content="width=device-width, initial-scale=1">']
    head += [f"<style>{STYLE}</style>\n</head>\n<body>"]
    return "\n".join([*head, *parts, f"<script>{SCRIPT}</script>\n</body>\n</html>\n"])


def overall(board: Board) -> str:
    """Every method over all columns that it is in beside others."""
    cells = [cell for cells in board.values() for cell in cells.values() if len(cell) > 1]
    rows = []
    for method in dict.fromkeys(place.method for cell in cells for place in cell):
        own = [(place, len(cell)) for cell in cells for place in cell if place.method == method]
        mean = statistics.mean((place.rank - 1) / (count - 1) for place, count in own)
        first, level = sum(place.rank == 1 for place, _ in own), sum(not place.behind for place, _ in own)
        rows.append((mean, [_cell(f"{mean:.2f}", mean), *(_cell(str(n), n) for n in (len(own), first, level))], method))
    head = ["method", "mean place", "columns", "first", "best or level with it"]
    return _table(head, [(method, cells) for _, cells, method in sorted(rows, key=lambda row: (row[0], row[2]))])


def matrix(cells: Mapping[str, Sequence[Place]]) -> str:
    """The methods of a study by its columns."""
    methods = dict.fromkeys(place.method for cell in cells.values() for place in cell)
    by_cell = [({place.method: place for place in cell}, max(place.seeds for place in cell)) for cell in cells.values()]
    rows = [(method, [_figure(cell.get(method), most) for cell, most in by_cell]) for method in methods]
    return _table(["method", *cells], rows)


def _figure(place: Place | None, most: int) -> str:
    """A method's figure, where the column's methods have so many seeds at most."""
    if place is None:
        return _cell("", "")
    seeds = f"{place.seeds} seed{'s' * (place.seeds > 1)}"
    title = f"{seeds}; against the best p = {place.p:.2g}" if place.rank > 1 else seeds
    few = f", {seeds}" * (place.seeds < most)
    shown = f'<span title="{title}">{place.score:.2f} <small>{place.rank}{few}</small></span>'
    return _cell(shown, f"{place.score:.4f}", "behind" * place.behind)


def _cell(shown: str, key: float | str, kind: str = "") -> str:
    return f'<td data-sort="{key}" class="{kind}">{shown}</td>'


def _table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    up = {"method", "mean place"}  # what a first click sorts from the least
    heads = "".join(f'<th scope="col"{" data-up" * (name in up)}><button>{name}</button></th>' for name in head)
    body = "\n".join(f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>' for name, cells in rows)
    return f'<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def main() -> None:
    """Write the page and print where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/leaderboard.html"), help="where the page goes")
    given = parser.parse_args()
    given.out.write_text(page(read(given.folders)), "utf-8")
    print(given.out)


if __name__ == "__main__":
    main()
