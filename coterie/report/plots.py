"""The report's figures one at a time, for a notebook."""

from collections.abc import Callable, Mapping

from coterie.errors import BadInput, nearest
from coterie.measure.measures import AUTO
from coterie.measure.metrics import main_measure
from coterie.measure.verdict_words import unit
from coterie.report import figures
from coterie.report.canvas import Figure
from coterie.report.clusters import Array
from coterie.report.collaboration import collaboration
from coterie.report.learning import rounds_of, silos_of
from coterie.report.theme import inks
from coterie.runs.read import Run


def figure_of(run: Run, what: str) -> Figure:
    """One of `FIGURES`; white in a dark notebook too, where no script of the page sets colours."""
    if what not in FIGURES:
        raise BadInput(f"plot: unknown '{what}'; {nearest(what, FIGURES)}")
    return FIGURES[what](run).update_layout(paper_bgcolor="white", plot_bgcolor="white")


def weights_of(run: Run, method: str) -> Mapping[str, Array]:
    """The trace of a method that has weights between silos."""
    trace = run.traces.get(method, {})
    if "collaboration" not in trace:
        raise BadInput(f"{method} has no weights between silos; fedamp, heurfedamp, fedacs, apple … have")
    return trace


def _rounds(run: Run) -> Figure:
    by = run.by or run.study.get("measure", {}).get("by", AUTO)
    return figures.curves(run.results, inks(run.methods), main_measure(run.results, by))


def _gains(run: Run) -> Figure:
    if run.verdict is None or not run.verdict["silos"]:
        raise BadInput("plot('gains'): one method alone has no verdict; compare several, separate among them")
    return figures.gains(run.verdict["silos"], unit(run.verdict))


def _collaboration(run: Run) -> Figure:
    if len(run.methods) > 1:
        example = next((name for name in run.methods if "collaboration" in run.traces.get(name, {})), "fedamp")
        raise BadInput(f"plot('collaboration'): the weights are one method's; e.g. comparison['{example}']")
    trace = weights_of(run, next(iter(run.methods)))
    return collaboration(trace["collaboration"], silos_of(trace), rounds_of(trace))


FIGURES: dict[str, Callable[[Run], Figure]] = {
    "rounds": _rounds,
    "scores": lambda run: figures.bars(run.methods, inks(run.methods), run.by),
    "silos": lambda run: figures.silo_distribution(run.methods, inks(run.methods), run.by),
    "gains": _gains,
    "collaboration": _collaboration,
}
