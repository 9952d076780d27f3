"""Who learns from whom, and what methods adjust over the rounds: the sections."""

from collections.abc import Mapping

from coterie.report.clusters import Array
from coterie.report.collaboration import collaboration, graph
from coterie.report.html import blocks, note, plot, section, select, titled
from coterie.report.trajectories import Trajectory, drawn, trajectories
from coterie.runs.read import Run


def who_learns_from_whom(run: Run) -> str:
    """The collaboration weights of each method that has them: a heat map over the rounds, a graph of the last."""
    shown = {
        method: "<div class='figures'><div>"
        + plot(collaboration(trace["collaboration"], silos_of(trace), rounds_of(trace)))
        + "</div><div>"
        + plot(graph(trace["collaboration"][-1], silos_of(trace)))
        + "</div></div>"
        for method, trace in _first(run).items()
        if "collaboration" in trace
    }
    if not shown:
        return ""
    text = (
        "In the map a row is a silo, a column the silo it learns from; silos that weigh each other most in the last "
        "round stand together. Colours run to the largest weight between two different silos, so a silo's weight on "
        "itself may lie beyond them. The graph is of the last round: a line joins two silos when one takes half as "
        "much again as an even share from the other, wider for more; colours are the groups that this makes."
    )
    return section("Who learns from whom", note(text) + blocks("Method", shown))


def adjusted(run: Run) -> str:
    """What each method's weights did over the rounds."""
    shown = {
        method: "<div class='figures'>" + "".join(_drawn(each) for each in found) + "</div>"
        for method, trace in _first(run).items()
        if "rounds" in trace and (found := list(trajectories(trace)))
    }
    if not shown:
        return ""
    text = "What a method adjusts beside the models, of the first seed. Of many weights those that were ever largest."
    return section("Trajectories", note(text) + blocks("Method", shown))


def _drawn(trajectory: Trajectory) -> str:
    first = trajectory.title[0]
    first = first.upper() if first.isascii() else first  # Π is not π
    choose = select("Silo", trajectory.silos, "data-lines") if len(trajectory.silos) > 1 else ""
    return f"<div class='lines'>{titled(first + trajectory.title[1:], choose + plot(drawn(trajectory)))}</div>"


def _first(run: Run) -> dict[str, Mapping[str, Array]]:
    """The traces, that of the method of the verdict first."""
    judged = (run.verdict or {}).get("judged")
    names = sorted(run.traces, key=lambda name: name != judged)
    return {name: run.traces[name] for name in names}


def silos_of(trace: Mapping[str, Array]) -> list[str]:
    """The silos whose weights a trace holds."""
    return [str(silo) for silo in trace["silos"]]


def rounds_of(trace: Mapping[str, Array]) -> list[int] | None:
    """The rounds after which a trace was kept, where it holds them."""
    return [int(round) for round in trace["rounds"]] if "rounds" in trace else None
