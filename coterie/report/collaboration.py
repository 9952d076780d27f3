"""Who learns from whom: the weights of a method as a heat map, round by round, and as a network after the last."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.errors import BadInput
from coterie.report.canvas import Figure, axis_labels, blank, heat_map, label, plotly_objects
from coterie.report.clusters import Array, network, together
from coterie.report.series import thinned
from coterie.report.theme import group_colour

MOST_ROUNDS = 25
MOST_CELLS = 400_000  # about 2 MB of the page
DIVERGING = [[0, "#D55E00"], [0.5, "rgba(128,128,128,0.12)"], [1, "#0072B2"]]  # zero shows the page, in both themes
WIDTHS = ((0.5, 4.0), (0.25, 2.5), (0.1, 1.5), (0.0, 0.8))  # lines of at least such a share are so wide
NAMED = 40  # more silos than this are named on pointing at them only


def collaboration(weights: Array, silos: Sequence[str], rounds: Sequence[int] | None = None) -> Figure:
    """The weight of every silo (column) in every other's model (row), `weights` being rounds × silos × silos.

    `rounds` are their numbers, from 1 unless given. Of many rounds an even choice is shown, first and last among them.
    Silos that weigh each other most in the last round stand together.
    """
    weights = np.asarray(weights, dtype=np.float32)
    if weights.ndim != 3 or weights.shape[1:] != (len(silos), len(silos)) or not weights.size:
        raise BadInput(f"collaboration: expected rounds × {len(silos)} × {len(silos)} weights, found {weights.shape}")
    go = plotly_objects()
    order = together(weights[-1])
    weights = weights[:, order][:, :, order]
    shown = shown_rounds(*weights.shape[:2])
    number = list(range(1, len(weights) + 1)) if rounds is None else list(rounds)
    names = [axis_labels(silos, longest=18)[i] for i in order]
    style = _scale(weights[shown])
    gap = 1 if len(names) <= 40 else 0
    figure = heat_map(
        blank(height=540), "weight", "%{y} from %{x}: %{z:.4~g}",
        z=weights[shown[-1]], x=names, y=names, xgap=gap, ygap=gap, hoverongaps=False, **style,
    )  # fmt: skip
    figure.update_traces(colorbar={"len": 1, "x": 1.01, "tickfont": {"size": 11}})
    figure.frames = [go.Frame(name=str(number[i]), data=[go.Heatmap(z=weights[i])], traces=[0]) for i in shown]
    if len(shown) > 1:
        figure.update_layout(sliders=[_slider([number[i] for i in shown])])
    figure.update_yaxes(ticks="")
    return figure.update_xaxes(ticks="", tickangle=-90, side="top", title_text="learns from")


def graph(weights: Array, silos: Sequence[str]) -> Figure:
    """The ties of more than an even share in one round's weights, rows the takers; who takes from whom is close."""
    found = network(weights)
    x, y = found.places[:, 0], found.places[:, 1]
    figure = blank(height=540, showlegend=False, hovermode="closest")
    taken = set[tuple[int, int]]()
    for least, width in WIDTHS:
        ties = [(i, j) for i, j, weight in found.edges if weight >= least and (i, j) not in taken]
        taken |= set(ties)
        figure.add_scatter(
            x=[v for i, j in ties for v in (x[i], x[j], None)],
            y=[v for i, j in ties for v in (y[i], y[j], None)],
            mode="lines",
            line={"width": width, "color": "rgba(128,136,144,0.55)"},
            hoverinfo="skip",
        )
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers+text" if len(silos) <= NAMED else "markers",
        text=[label(name, 14) for name in silos],
        textposition=["top center" if above else "bottom center" for above in found.named_above()],
        textfont={"size": 11},
        customdata=[_takes(row, i, silos) for i, row in enumerate(weights)],
        marker={
            "size": 16 if len(silos) <= NAMED else 9,
            "color": [group_colour(group) for group in found.groups],
            "line": {"width": 1.5, "color": "rgba(255,255,255,0.8)"},
        },
        hovertemplate="%{customdata}<extra></extra>",
    )
    spare = 0.12 * (float(np.ptp(found.places)) or 1.0)
    for update, values in ((figure.update_xaxes, x), (figure.update_yaxes, y)):
        update(visible=False, range=[float(values.min()) - spare, float(values.max()) + spare])
    return figure


def shown_rounds(rounds: int, silos: int) -> list[int]:
    """The indices of the rounds the page has room for."""
    return thinned(rounds, max(2, min(MOST_ROUNDS, MOST_CELLS // silos**2)))


def largest_between(weights: Array) -> tuple[float, bool]:
    """The largest weight between two silos, which one on itself would drown, and whether any is negative."""
    between = weights[:, ~np.eye(weights.shape[1], dtype=bool)]
    between = between[np.isfinite(between)]
    largest = float(np.abs(between).max()) if between.size else 0.0
    return largest or 1.0, bool(between.size) and bool(between.min() < 0)


def _scale(weights: Array) -> dict[str, Any]:
    largest, signed = largest_between(weights)
    if signed:
        return {"colorscale": DIVERGING, "zmin": -largest, "zmax": largest}
    return {"colorscale": "Viridis", "zmin": 0.0, "zmax": largest}


def _slider(shown: Sequence[int]) -> dict[str, Any]:
    now = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    return {
        "active": len(shown) - 1,
        "currentvalue": {"prefix": "after round ", "font": {"size": 13}},
        "pad": {"t": 24, "b": 4},
        "ticklen": 4,
        "minorticklen": 0,
        "font": {"size": 11},
        "steps": [{"label": str(i), "method": "animate", "args": [[str(i)], now]} for i in shown],
    }


def _takes(row: Array, own: int, silos: Sequence[str]) -> str:
    order = [int(j) for j in np.argsort(-row, kind="stable") if j != own and row[j] > 0][:5]
    lines = [f"{label(silos[j])} {row[j]:.3g}" for j in order]
    return "<br>".join(
        [f"<b>{label(silos[own])}</b>", *(["learns from:", *lines] if lines else ["learns from nobody"])]
    )
