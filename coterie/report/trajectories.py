"""What a method adjusts over the rounds: APPLE's p, FedEM's π, APFL's α and their like."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.report.canvas import Figure, blank, label, legend_below
from coterie.report.clusters import Array
from coterie.report.series import thinned
from coterie.report.theme import PALETTE

MOST_SILOS = 20  # whose own weights can be looked at
MOST_PEERS = 8
MOST_POINTS = 60
NAMES = {
    "pi": "π, the share of each component",
    "shares": "share of each candidate in a silo's mixture",
    "alpha": "α, the weight of the personal model",
    "distance": "distance of each silo's model from the global one",
    "drift": "distance of each silo's control variate from the server's",
    "consensus": "how far the estimates are apart",
}


@dataclass(frozen=True)
class Trajectory:
    """Lines over the rounds; with several silos to choose from, those of one are shown at a time."""

    title: str
    rounds: list[int]
    lines: list[tuple[str, Array, int | None]]  # name, values, and which silo it belongs to (None: always shown)
    silos: list[str]  # to choose from; none: all lines are shown


def trajectories(trace: Mapping[str, Array]) -> Iterator[Trajectory]:
    """All that a method's trace holds of two rounds or more."""
    silos = [str(name) for name in trace.get("silos", [])]
    count = len(trace["rounds"])
    if count < 2:
        return
    kept = thinned(count, MOST_POINTS)
    rounds = [int(trace["rounds"][i]) for i in kept]
    for name, values in trace.items():
        if name in ("silos", "groups", "rounds", "cluster"):
            continue
        values = np.round(np.asarray(values, dtype=float)[kept], 6)  # beyond that it is rounding that moves
        title = NAMES.get(name, name)
        if name == "collaboration":
            own = np.diagonal(values, axis1=1, axis2=2)
            yield Trajectory("weight of each silo on itself", rounds, _per_silo(own, silos), [])
            yield _chosen("weight of one silo on the others", rounds, values, silos, silos)
        elif values.ndim == 1:
            yield Trajectory(title, rounds, [(name, values, None)], [])
        elif values.ndim == 2:
            yield Trajectory(title, rounds, _per_silo(values, silos), [])
        else:
            yield _chosen(title, rounds, values, silos, [f"component {c + 1}" for c in range(values.shape[2])])


def drawn(trajectory: Trajectory) -> Figure:
    """As a figure; the page's script shows the lines of the chosen silo (`meta`)."""
    figure = blank(height=360, hovermode="closest", legend=legend_below(), showlegend=bool(trajectory.silos))
    places = dict[int | None, int]()
    for name, values, silo in trajectory.lines:
        place = places[silo] = places.get(silo, -1) + 1
        figure.add_scatter(
            x=trajectory.rounds,
            y=values,
            name=label(name),
            mode="lines",
            line={"color": PALETTE[place % len(PALETTE)], "width": 2 if trajectory.silos else 1.25},
            opacity=1 if trajectory.silos or len(trajectory.lines) <= 20 else 0.6,
            visible=silo in (None, 0),
            meta=silo,
            hovertemplate="%{fullData.name}: %{y:.3g} after round %{x}<extra></extra>",
        )
    figure.update_xaxes(title_text="round")
    return figure


def _per_silo(values: Array, silos: Sequence[str]) -> list[tuple[str, Array, int | None]]:
    return [(name, values[:, i], None) for i, name in enumerate(silos)]


def _chosen(title: str, rounds: list[int], values: Array, silos: Sequence[str], others: Sequence[str]) -> Trajectory:
    """One silo's lines at a time; of many lines those that were ever the largest."""
    lines = list[tuple[str, Array, int | None]]()
    shown = list(silos[:MOST_SILOS])
    for i in range(len(shown)):
        largest = np.nanmax(np.abs(values[:, i]), axis=0)
        if others is silos:
            largest[i] = -np.inf
        peers = sorted(int(j) for j in np.argsort(-largest, kind="stable")[:MOST_PEERS] if largest[j] > -np.inf)
        lines += [(others[j], values[:, i, j], i) for j in peers]
    return Trajectory(title, rounds, lines, shown)
