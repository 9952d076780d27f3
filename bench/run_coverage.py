"""How much of the papers was run: a cell is one figure of a table, a method on a data set in a setting."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from finished_runs import Cell, differences

from coterie.studies import study as studies

NOT_AT_HAND = {"emnist", "femnist", "pathmnist"}  # data sets that could not be had
MANY = 3  # seeds
SAME_RUNS = {"amp-figure2": "amp-table3", "amp-figure3": "amp-table3"}  # figures of the very runs of a table
SIZE = ("model.", "data.silos ", "data.samples ", "data.subsample ", "data.test ")  # of the model, and how many data
HEAD = ["study", "cells", "data at hand", "run", "in full", f"of these with {MANY} seeds or more"]
Runs = Mapping[str, Mapping[str, Cell]]  # by study and cell


@dataclass(frozen=True)
class Wanted:
    """One cell: what a study asks for, and what there is of it."""

    study: str
    cell: str
    method: str
    at_hand: bool
    rounds: int  # that the study has
    run: int  # the fewest that its runs have; 0: there are none
    seeds: int
    alike: bool  # all its runs have the study's model and as many data

    @property
    def full(self) -> bool:
        """Whether it was run as long as the study is, with its model and as many data."""
        return self.alike and self.run >= self.rounds


def paper_of(study: str) -> str:
    """The first part of a study's name."""
    return study.partition("-")[0]


def wanted(name: str, found: Runs) -> Iterator[Wanted]:
    """The cells of a built-in study: where a paper has figures those, else every method on every data set."""
    whole, kept = studies.read(name), found.get(name) or found.get(SAME_RUNS.get(name, ""), {})
    for cell in whole.get("cells", {}):
        study = studies.check(studies.select(whole, cell))
        for method in study.published or study.methods:
            at_hand = study.data["name"] not in NOT_AT_HAND
            yield Wanted(name, cell, method, at_hand, study.training.rounds, *_run(kept.get(cell), method))


def _run(cell: Cell | None, method: str) -> tuple[int, int, bool]:
    """With how many rounds at least and seeds a method was run, and whether with the study's model and as many data."""
    if cell is None or not cell.of(method):
        return 0, 0, False
    tables = [t for t, s in zip(cell.tables, cell.summaries, strict=True) if method in s["methods"]]
    alike = not any(each.startswith(SIZE) for table in tables for each in differences(table, cell.methods()))
    return min(int(table["train"]["rounds"]) for table in tables), len(cell.seeds(method)), alike


def all_wanted(found: Runs) -> list[Wanted]:
    """The cells of all built-in studies of papers."""
    return [each for name in studies.built_in() if "paper" in studies.read(name) for each in wanted(name, found)]


def counts(cells: Sequence[Wanted]) -> list[int]:
    """What a row of the table has: all, those that the data allow, run, in full, and with many seeds."""
    full = [each for each in cells if each.full]
    run = [each for each in cells if each.run]
    return [len(cells), sum(e.at_hand for e in cells), len(run), len(full), sum(e.seeds >= MANY for e in full)]


def share(cells: Sequence[Wanted]) -> str:
    """The same as a sentence."""
    _, at_hand, run, full, many = counts(cells)
    percent = f" ({100 * full / at_hand:.0f}%)" if at_hand else ""
    return (
        f"Of {at_hand} cells that the data at hand allow, {run} have been run, {full}{percent} in full (as long as "
        f"the study, with its model and as many data), {many} of these with {MANY} seeds or more."
    )


def rows(cells: Sequence[Wanted], link: bool = True) -> list[list[str]]:
    """A row for each study."""
    by_study: dict[str, list[Wanted]] = {}
    for each in cells:
        by_study.setdefault(each.study, []).append(each)
    shown = {
        name: f"[{name}]({name}.md)" if link and any(e.run for e in its) else name for name, its in by_study.items()
    }
    return [[shown[name], *map(str, counts(its))] for name, its in by_study.items()]


def tables(cells: Sequence[Wanted]) -> list[Wanted]:
    """Those of tables, in which papers print figures."""
    return [each for each in cells if "-table" in each.study]
