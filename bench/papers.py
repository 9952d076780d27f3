"""A page for each paper, what could and what could not be reproduced, and the front page of the results."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from finished_runs import Cell, changed_since, differences
from page_parts import SCORES, markdown, significant, spread
from run_coverage import HEAD, SAME_RUNS, Runs, Wanted, all_wanted, paper_of, rows, share, tables

from coterie.studies import study as studies

PAPERS = {
    "amp": "FedAMP: Huang et al., AAAI 2021, and its preprint of 2020",
    "acs": "FedACS: Chen et al., 2023",
    "apple": "APPLE: Adapt to Adaptation, 2021",
    "em": "FedEM: Marfoq et al., NeurIPS 2021",
}
COUNTED = (
    "A cell of a table is a figure that the paper prints: a method on a data set in a setting. Where a paper draws and "
    "prints no figures it is a method in a setting. EMNIST, FEMNIST and PathMNIST were not at hand."
)
COMMAND = "    python bench/results.py --all"


def paper_page(paper: str, found: Runs, out: Path) -> str:
    """What there is of a paper: words of one's own, coverage, and every cell."""
    cells = [each for each in all_wanted(found) if paper_of(each.study) == paper]
    lines = [f"# {PAPERS[paper]}", "", share(tables(cells)), ""]
    text = out / "words" / f"{paper}.md"
    lines += [text.read_text("utf-8").strip(), ""] if text.exists() else []
    lines += ["## Coverage", "", *markdown(HEAD, rows(cells)), ""]
    for name in dict.fromkeys(each.study for each in tables(cells)):
        if name in found:
            lines += [f"## {name}", "", str(studies.read(name)["about"]), "", *cell_table(name, found[name], cells)]
    lines += ["## This page", "", "It is made from the kept runs by", "", COMMAND]
    return "\n".join(lines).rstrip() + "\n"


def cell_table(name: str, found: Mapping[str, Cell], cells: Sequence[Wanted]) -> list[str]:
    """Every cell of a study that was run: val-picked, the paper's score beside the paper's, rounds, seeds, cost."""
    head = ["cell", "method", "val-picked", "paper", "ours", "difference", "last", "rounds", "seeds", "training, s"]
    made, ahead, other, since = [], list[str](), list[str](), list[str]()
    score = studies.read(name).get("compared", "bmta")
    for cell, its in ((each, found[each]) for each in studies.read(name)["cells"] if each in found):
        paper = its.published()
        for each in (e for e in cells if e.study == name and e.cell == cell and e.run):
            values = its.values(each.method, score)
            apart = f"{statistics.mean(values) - paper[each.method]:+.2f}" if values and each.method in paper else ""
            columns = [spread(its.values(each.method, key)) for key in ("val_picked", score, "last", "train_seconds")]
            full = str(each.run) if each.run >= each.rounds else f"{each.run} of {each.rounds}"
            figure = f"{paper[each.method]:g}" if each.method in paper else ""
            made.append(
                [
                    cell,
                    each.method,
                    columns[0],
                    figure,
                    columns[1],
                    apart,
                    columns[2],
                    full,
                    str(each.seeds),
                    columns[3],
                ]
            )
        ahead += [f"- {cell}: {sentence}" for sentence in significant(name, its)]
        apart = dict.fromkeys(d for table in its.tables for d in differences(table, its.methods()))
        other += [f"- {cell}: {'; '.join(apart)}."] if apart else []
        later = dict.fromkeys(c for runs in zip(its.tables, its.summaries, strict=True) for c in changed_since(*runs))
        since += [f"- {cell}: {'; '.join(later)}."] if later else []
    lines = [*markdown(head, made), "", f"“ours” is {SCORES[score]}, the score that the paper reports.", ""]
    lines += (
        ["Significantly ahead over the silos (Wilcoxon signed-rank, Holm over all pairs of the cell):", "", *ahead, ""]
        if ahead
        else []
    )
    lines += ["Otherwise than in the study:", "", *other, ""] if other else []
    return [*lines, "Otherwise since they were run:", "", *since, ""] if since else lines


def front_page(found: Runs, out: Path) -> str:
    """Coverage, counted from the kept runs, and where everything is."""
    cells = all_wanted(found)
    lines = ["# Results", "", share(tables(cells)), ""]
    text = out / "words" / "README.md"
    lines += [text.read_text("utf-8").strip(), ""] if text.exists() else []
    lines += ["## Papers", ""]
    lines += [f"- [{title}]({paper}.md): {share(_of(paper, tables(cells)))}" for paper, title in PAPERS.items()]
    lines += ["", "## Coverage", "", COUNTED, ""]
    lines += [*markdown(HEAD, rows(cells)), ""]
    others = [name for name in found if not studies.read(name).get("paper")] if found else []
    lines += [f"Beside the papers: {', '.join(f'[{name}]({name}.md)' for name in others)}.", ""] if others else []
    made = "They are made from the runs kept in `docs/results/runs`, with their figures, by"
    lines += ["## These pages", "", made, "", COMMAND]
    return "\n".join(lines).rstrip() + "\n"


def _of(paper: str, cells: Sequence[Wanted]) -> list[Wanted]:
    return [each for each in cells if paper_of(each.study) == paper]


def figure_page(name: str, found: Runs, out: Path) -> str:
    """The page of a figure that the runs of a table have: the drawings of these, cell by cell."""
    table, study = SAME_RUNS[name], studies.read(name)
    kind = {"amp-figure2": "silos*.svg", "amp-figure3": "heat-map-*.svg"}[name]
    lines = [f"# {name}", "", str(study["about"]), "", f"Paper: {study['paper']}.", ""]
    lines += [f"Drawn of the runs of [{table}]({table}.md), which are the same.", ""]
    text = out / "words" / f"{name}.md"
    lines += [text.read_text("utf-8").strip(), ""] if text.exists() else []
    for cell in study["cells"]:
        drawn = sorted((out / "figures" / f"{table}-{cell}").glob(kind)) if cell in found[table] else []
        for path in drawn:
            what = path.stem.replace("heat-map-", "Weights between silos, last round: ")
            caption = "Test accuracy of every silo at the best round" if path.stem == "silos" else what
            lines += [f"![{cell}: {caption}]({path.relative_to(out).as_posix()})", "", f"{cell}: {caption}.", ""]
    return "\n".join(lines).rstrip() + "\n"
