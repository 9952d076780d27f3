"""Who learns from whom, and what methods adjust over the rounds, as files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from coterie.report.clusters import Array, network, together
from coterie.report.collaboration import largest_between
from coterie.report.theme import PALETTE, group_colour
from coterie.report.trajectories import Trajectory, trajectories

MOST_TICKS = 40
Draw = Callable[[Any], None]


def figures(name: str, trace: Mapping[str, Array]) -> Iterator[tuple[str, tuple[float, float], Draw]]:
    """Names, sizes in inches, and how to draw them; `name` is the method's."""
    silos = [str(silo) for silo in trace["silos"]]
    if "collaboration" in trace:
        last, groups = trace["collaboration"][-1], trace.get("groups", np.zeros(len(silos)))
        yield f"heat-map-{name}", (4.6, 3.8), lambda axes: _heat_map(axes, last, silos, groups)
        yield f"graph-{name}", (4.4, 4.0), lambda axes: _graph(axes, last, silos)
    if "rounds" in trace:
        for i, found in enumerate(trajectories(trace), 1):
            yield f"trajectory-{name}-{i}", (4.8, 3.0), partial(_trajectory, each=found)


def ticks(axes: Any, side: str, names: Sequence[str]) -> None:
    """Names along an axis; of too many none, but how many there are."""
    put = axes.set_xticks if side == "x" else axes.set_yticks
    if len(names) > MOST_TICKS:
        put([])
        (axes.set_xlabel if side == "x" else axes.set_ylabel)(f"{len(names)} silos")
    else:
        put(range(len(names)), [text(name) for name in names], rotation=90 if side == "x" else 0, fontsize=7)


def image(
    axes: Any, cells: Array, across: Sequence[str], down: Sequence[str], of: str, shrink: float = 1, **style: Any
) -> None:
    """A cell for each pair of names, and beside it what its colours are of."""
    drawn = axes.imshow(cells, **style)
    axes.figure.colorbar(drawn, ax=axes, label=of, pad=0.02, shrink=shrink)
    ticks(axes, "x", across)
    ticks(axes, "y", down)
    axes.grid(visible=False)


def text(name: str) -> str:
    """A name that matplotlib does not read as mathematics, cut when very long."""
    return (name if len(name) <= 24 else name[:23] + "…").replace("$", r"\$")


def _heat_map(axes: Any, weights: Array, silos: list[str], groups: Array) -> None:
    """Silos that weigh each other most stand together; where their true groups are known, these come first."""
    from matplotlib.colors import Normalize, PowerNorm

    order = sorted(together(weights), key=lambda silo: groups[silo])
    most, signed = largest_between(weights[None])
    norm = (
        Normalize(-most, most) if signed else PowerNorm(0.5, 0, most)
    )  # a root, for those that are weak beside a pair
    names = [silos[i] for i in order]
    image(axes, weights[order][:, order], names, names, "weight", 0.85, cmap="RdBu" if signed else "viridis", norm=norm)
    for end in np.flatnonzero(np.diff(groups[order])):
        axes.axhline(end + 0.5, color="white", linewidth=0.6)
        axes.axvline(end + 0.5, color="white", linewidth=0.6)
    axes.set_xlabel(f"from {axes.get_xlabel()}".rstrip())
    axes.set_ylabel(f"to {axes.get_ylabel()}".rstrip())


def _graph(axes: Any, weights: Array, silos: list[str]) -> None:
    found = network(weights)
    for i, j, weight in found.edges:
        axes.plot(*found.places[[i, j]].T, color="#808890", alpha=0.5, linewidth=0.6 + 4 * weight, zorder=1)
    colours = [group_colour(group) for group in found.groups]
    axes.scatter(*found.places.T, c=colours, s=60, zorder=2, edgecolors="white")
    if len(silos) <= MOST_TICKS:
        for place, name, above in zip(found.places, silos, found.named_above(), strict=True):
            beside = {"xytext": (0, 6 if above else -6), "va": "bottom" if above else "top", "ha": "center"}
            axes.annotate(text(name), place, textcoords="offset points", fontsize=7, **beside)
    axes.set_axis_off()
    axes.set_aspect("equal")


def _trajectory(axes: Any, each: Trajectory) -> None:
    shown = [(name, values) for name, values, silo in each.lines if silo in (None, 0)]
    for i, (name, values) in enumerate(shown):
        axes.plot(each.rounds, values, color=PALETTE[i % len(PALETTE)], linewidth=1.2, label=text(name))
    axes.set_xlabel("round")
    axes.set_title(each.title + (f" ({text(each.silos[0])})" if each.silos else ""), fontsize=9, loc="left")
    if each.silos:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
