"""A progress bar for a study: method, round, accuracy or error so far, time left."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.engine.rounds import Progress as Report
from coterie.errors import warn
from coterie.measure.measures import shown_score
from coterie.run.experiment import Watch
from coterie.studies.study import Study


@contextmanager
def shown(study: Study, console: Console, quiet: bool) -> Iterator[Watch]:
    """What to call after each round."""
    if quiet:
        yield lambda method, seed, report: None
        return
    bar = Progress(
        TextColumn("{task.fields[what]}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TextColumn("{task.fields[score]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (_can_redraw() if console.is_jupyter else console.is_terminal),
    )
    seeds, of_seed = {*study.seeds}, study.training.rounds * len(study.methods)
    searched = sum(bool(study.searched(label)) for label in study.methods)
    with bar:
        job = bar.add_task("", total=of_seed * len(seeds), what="reading the data", score="")
        done = dict[tuple[str, int], int]()  # rounds, of those that train side by side too
        search, in_search = dict[str, int](), 0  # rounds of candidates: by method, and of all searches

        def watch(method: str, seed: int, report: Report) -> None:
            nonlocal in_search
            seeds.add(seed)  # some are added after the search
            what = f"{method}, seed {seed}" if len(seeds) > 1 else method
            if report.tuning:
                search[method], in_search = report.tried, report.to_try * searched
                what, score = f"tuning {method:<8}", f"round {report.round} of {report.rounds}"
                total, completed = of_seed * len(seeds) + in_search, sum(search.values())
                bar.update(job, total=total, completed=completed, what=what, score=score)
                return
            last = report.round == report.rounds  # which may be earlier than planned
            done[method, seed] = study.training.rounds if last else report.round
            total, completed = of_seed * len(seeds) + in_search, sum(done.values()) + in_search
            if completed == total:
                what = "verdict, report"
            score = shown_score(report.measure, report.score)
            bar.update(job, total=total, completed=completed, what=f"{what:<15}", score=score)

        yield watch


def _can_redraw() -> bool:
    """Whether a notebook can show a bar; without ipywidgets rich would print a warning at every step instead."""
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        warn("no progress bar: pip install ipywidgets")
        return False
    return True
