"""Predicted numbers against the true ones, and how far off they are."""

from collections.abc import Mapping

import numpy as np

from coterie.measure.measures import Array
from coterie.report.canvas import Figure, blank, label, legend_below
from coterie.report.predicted import Predicted
from coterie.report.series import thinned
from coterie.report.theme import Ink

MOST_DOTS = 1500
MOST_BARS = 40


def scatter(found: Mapping[str, Predicted], inks: Mapping[str, Ink]) -> Figure:
    """A dot for each test row; of very many rows an even choice."""
    figure = blank(height=400, hovermode="closest", legend=legend_below())
    ends = [extreme(float(f(each.labels)) for each in found.values()) for extreme, f in ((min, np.min), (max, np.max))]
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"color": "#8C8C8C", "width": 1}, showlegend=False,
                       hoverinfo="skip")  # fmt: skip
    for method, each in found.items():
        kept = thinned(len(each.labels), MOST_DOTS)
        figure.add_scatter(
            x=each.labels[kept].astype(np.float32), y=each.values[kept].astype(np.float32), mode="markers",
            name=label(method), marker={"color": inks[method].colour, "size": 5, "opacity": 0.55},
            hovertemplate="true %{x:.4g}, predicted %{y:.4g}<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text="true")
    figure.update_yaxes(title_text="predicted")
    return figure


def histogram(found: Predicted, ends: tuple[float, float] | None = None) -> tuple[Array, Array]:
    """The middle of each bar of predicted minus true, and how many rows it holds."""
    bars = int(np.clip(2 * np.sqrt(len(found.labels)), 8, MOST_BARS))
    counts, edges = np.histogram(found.values - found.labels, bins=bars, range=ends)
    return (edges[1:] + edges[:-1]) / 2, counts


def residuals(found: Mapping[str, Predicted], inks: Mapping[str, Ink]) -> Figure:
    """How far off, and to which side."""
    off = np.concatenate([each.values - each.labels for each in found.values()])
    ends = (float(off.min()), float(off.max()))
    figure = blank(height=400, barmode="overlay", bargap=0, legend=legend_below())
    for method, each in found.items():
        x, y = histogram(each, ends)
        figure.add_bar(
            x=x, y=y, name=label(method), marker_color=inks[method].faded(0.55),
            hovertemplate="%{x:.3g}: %{y} rows<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text="predicted minus true")
    figure.update_yaxes(title_text="test rows")
    return figure
