"""Pages of results from the folders of finished runs: `python bench/results.py --all` from all that are kept.

`python bench/results.py FOLDER... --out PAGES` makes those of the studies among some folders.

A page has one section for each cell of its study that was run. Several folders of one cell (other seeds, other methods)
make one table; what was run otherwise than in the built-in study is listed above it. Text of one's own is kept in
`words/STUDY.md` beside the pages, and stands at their top. Figures are drawn of the first folder of a cell and of
those that have other methods and all else the same; beside a paper's figures even if other methods are not in them.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dirty_apart
from finished_runs import Cell, changed_since, differences, read
from page_figures import pictures, swept
from page_parts import SCORES, markdown, own_methods, paired, spread
from papers import PAPERS, figure_page, front_page, paper_page
from run_coverage import SAME_RUNS

from coterie.measure.significance import compare
from coterie.studies import study as studies

RUNS = Path("docs/results/runs")


def page(name: str, cells: Mapping[str, Cell], out: Path, others: Sequence[Cell] = ()) -> str:
    """The page of a study, in Markdown; `others` are cells of other studies, to begin a sweep from."""
    first = next(iter(cells.values())).tables[0]
    lines = [f"# {name}", "", first.get("about", ""), ""]
    lines += [f"Paper: {first['paper']}.", ""] if first.get("paper") else []
    lines += [
        "Accuracies are percentages: means over silos, then over seeds (± standard deviation over seeds). BMTA picks "
        "its round on test data, as the papers do; val-picked picks it on validation data.",
        "",
    ]
    text = out / "words" / f"{name}.md"
    lines += [text.read_text("utf-8").strip(), ""] if text.exists() else []
    order = list(studies.read(name).get("cells", {})) if name in studies.built_in() else []
    sections = sorted(cells.values(), key=lambda cell: order.index(cell.name) if cell.name in order else len(order))
    missing = [cell for cell in order if not any(each == cell or each.startswith(f"{cell} ") for each in cells)]
    if missing:
        lines += [f"Not run: {', '.join(missing)}.", ""]
    if len(sections) > 1:
        lines += ["## All cells", "", *overview(sections)]
    lines += swept(name, sections, others, out)
    for cell in sections:
        lines += section(name, cell, out)
    lines += ["## This page", "", "`python bench/keep.py FOLDER...` keeps of runs what pages need. This one is made by"]
    lines += ["", "    python bench/results.py --all"]
    return "\n".join(lines).rstrip() + "\n"


def overview(cells: Sequence[Cell]) -> list[str]:
    """All cells in one table."""
    methods = list(dict.fromkeys(method for cell in cells for method in cell.methods()))
    rows = []
    for method in methods:
        row = [method]
        for cell in cells:
            compared = cell.tables[0].get("compared", "bmta")
            paper = cell.published().get(method)
            values = cell.values(method, compared) if cell.of(method) else []
            row.append(spread(values) + (f" (paper {paper:g})" if values and paper is not None else ""))
        rows.append(row)
    return [*markdown(["method", *(cell.name for cell in cells)], rows), ""]


def section(name: str, cell: Cell, out: Path) -> list[str]:
    """One cell: how it was run, what came of it."""
    lines = [f"## {cell.name}", ""] if cell.name else []
    alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for table, summary in zip(cell.tables, cell.summaries, strict=True):
        seeds = sorted({each["seed"] for scores in summary["methods"].values() for each in scores["per_seed"]})
        about = [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}", summary["device"]]
        about += [f"{tool} {version}" for tool, version in summary["versions"].items()]
        about += [f"commit {summary['commit'][:12]}"] if summary.get("commit") else []
        other = differences(table, cell.methods())
        changed = [f"Otherwise than in the study: {'; '.join(other)}."] if other else []
        since = changed_since(table, summary)
        changed += [f"Otherwise since it was run: {'; '.join(since)}."] if since else []
        alike.setdefault(("; ".join(about), *changed), []).append(summary)
    for (about, *changed), summaries in alike.items():
        lines += [f"    {summary.get('command', '')}" for summary in summaries]
        lines += ["", f"{about}; {', '.join(map(_time, summaries))}.", *changed, ""]
    lines += results(cell) + significance(name, cell) + paired(name, cell) + kinds(cell) + blocks(cell)
    lines += pictures(name, cell, out)
    return lines


def results(cell: Cell) -> list[str]:
    """Paper, ours, difference, and the scores the papers do not report."""
    methods, compared = cell.methods(), cell.tables[0].get("compared", "bmta")
    published = {key: cell.published(key) for key in ("published", "published_decile", "published_cloud")}
    beside = {compared: "published", "bottom_decile": "published_decile", "bmta_cloud": "published_cloud"}
    shown = [compared, *(score for score in SCORES if score != compared)]
    shown = [score for score in shown if any(cell.values(method, score) for method in methods)]
    head, rows, short = ["method"], {method: [method] for method in methods}, []
    for score in shown:
        paper = published.get(beside.get(score, ""), {})
        head += ["paper", SCORES[score], "difference"] if paper else [SCORES[score]]
        for method in methods:
            values = cell.values(method, score)
            figure = paper.get(method)
            apart = statistics.mean(values) - figure if values and figure is not None else None
            cells = [spread(values)]
            if paper:
                cells = ["" if figure is None else f"{figure:g}", *cells, "" if apart is None else f"{apart:+.2f}"]
            rows[method] += cells
            if apart is not None and apart < 0 and score == compared:
                short.append(f"{method} ({apart:+.2f})")
    head.append("training, s")
    for method in methods:
        rows[method].append(spread(cell.values(method, "train_seconds"), digits=0))
    lines = [*markdown(head, list(rows.values())), ""]
    if published["published"]:
        lines += [f"Short of the paper: {', '.join(short)}." if short else "No method is short of the paper.", ""]
    return lines


def significance(name: str, cell: Cell) -> list[str]:
    """The paper's own methods against all others, over the silos."""
    methods, own = cell.methods(), own_methods(name, cell)
    if not own or len(methods) < 2:
        return []
    found = compare({method: cell.per_silo(method) for method in (*own, *(m for m in methods if m not in own))})
    rows = [
        [pair.method, pair.other, f"{pair.mean_difference:+.2f}", f"{pair.p:.2g}", f"{pair.p_holm:.2g}"]
        for pair in found.itertuples()
        if pair.method in own
    ]
    silos = int(found["silos"].min())
    return [
        f"Wilcoxon signed-rank over {silos} silos (their means over seeds, at the best round), Holm over all pairs:",
        "",
        *markdown(["method", "against", "mean difference", "p", "p (Holm)"], rows),
        "",
    ]


def blocks(cell: Cell) -> list[str]:
    """How much silos take from their own group."""
    shares = [
        f"{method} {scores['within_group']:.1f}% (of the silo with the least {scores['within_group_least']:.1f}%)"
        for method in cell.methods()
        for scores in cell.of(method)[:1]
        if "within_group" in scores
    ]
    if not shares:
        return []
    return [f"Weight on others that stays within the silo's own group, last round: {', '.join(shares)}.", ""]


def kinds(cell: Cell) -> list[str]:
    """Silos with clean and dirty labels apart."""
    if not cell.tables[0]["data"].get("dirty"):
        return []
    rows, weights = markdown(dirty_apart.HEAD, dirty_apart.accuracies(cell)), dirty_apart.weights(cell)
    lines = ["Silos whose labels are clean, and those whose labels are dirty:", "", *rows, ""]
    return [*lines, f"Weight on others, last round: {'; '.join(weights)}.", ""] if weights else lines


def _time(summary: Mapping[str, Any]) -> str:
    return f"{summary['seconds'] / 60:.1f} minutes" if summary.get("seconds") else "time not known: resumed"


def write(folders: Sequence[Path], out: Path) -> list[Path]:
    """A page for every study among the folders."""
    out.mkdir(parents=True, exist_ok=True)
    found = read(folders)
    for name, cells in found.items():
        others = [cell for other, its in found.items() if other != name for cell in its.values()]
        (out / f"{name}.md").write_text(page(name, cells, out, others), "utf-8")
    return [out / f"{name}.md" for name in found]


def write_all(out: Path, runs: Path = RUNS) -> list[Path]:
    """The pages of all kept runs: of studies, of figures that share a table's runs, of papers, and the front page."""
    pages = write(kept := sorted(runs.iterdir()), out)
    found = read(kept)
    made = {f"{paper}.md": paper_page(paper, found, out) for paper in PAPERS}
    made |= {f"{name}.md": figure_page(name, found, out) for name, table in SAME_RUNS.items() if table in found}
    made["README.md"] = front_page(found, out)
    for name, text in made.items():
        (out / name).write_text(text, "utf-8")
    return [*pages, *(out / name for name in made)]


def main() -> None:
    """Write the pages and print where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, help="folders of finished runs")
    parser.add_argument(
        "--all", action="store_true", help="of all kept runs, with a page for each paper and a front page"
    )
    parser.add_argument("--out", type=Path, default=RUNS.parent, help="where the pages go")
    given = parser.parse_args()
    if given.all == bool(given.folders):
        parser.error("give folders of finished runs, or --all")
    for path in write_all(given.out) if given.all else write(given.folders, given.out):
        print(path)


if __name__ == "__main__":
    main()
