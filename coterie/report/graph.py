"""Who learns from whom as a network: silos that take from each other are close and share a line."""

from collections.abc import Sequence

import numpy as np

from coterie.report.canvas import Figure, blank, label
from coterie.report.clusters import Array, network
from coterie.report.theme import group_colour

WIDTHS = ((0.5, 4.0), (0.25, 2.5), (0.1, 1.5), (0.0, 0.8))  # lines of at least such a share are so wide
NAMED = 40  # more silos than this are named on pointing at them only


def graph(weights: Array, silos: Sequence[str]) -> Figure:
    """The ties of more than an even share in one round's weights, rows the takers."""
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


def _takes(row: Array, own: int, silos: Sequence[str]) -> str:
    order = [int(j) for j in np.argsort(-row, kind="stable") if j != own and row[j] > 0][:5]
    lines = [f"{label(silos[j])} {row[j]:.3g}" for j in order]
    return "<br>".join(
        [f"<b>{label(silos[own])}</b>", *(["learns from:", *lines] if lines else ["learns from nobody"])]
    )
