"""Whether probabilities come true: the reliability diagram, before and after tempering."""

from collections.abc import Mapping

import numpy as np

from coterie.measure.measures import Array, reliability
from coterie.report.canvas import Figure, blank, label, legend_below
from coterie.report.predicted import Predicted
from coterie.report.theme import Ink


def bins(labels: Array, values: Array) -> list[tuple[float, float, int]]:
    """Of ten bins: the mean probability, the share that came true, how many; of more than two classes the likeliest."""
    if values.shape[1] == 2:
        return reliability(values[:, 1], np.asarray(labels == 1, dtype=float))
    return reliability(values.max(1), np.asarray(values.argmax(1) == labels, dtype=float))


def diagram(found: Mapping[str, Predicted], inks: Mapping[str, Ink]) -> Figure:
    """A line for each method, and dotted what its models gave before tempering."""
    figure = blank(height=400, hovermode="closest", legend=legend_below())
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": "#8C8C8C", "width": 1}, showlegend=False,
                       hoverinfo="skip")  # fmt: skip
    for method, each in found.items():
        for values, when, dash in ((each.values, "", "solid"), (each.raw, ", raw", "dot")):
            if values is None:
                continue
            x, y, n = zip(*bins(each.labels, values), strict=True)
            figure.add_scatter(
                x=x, y=y, customdata=n, mode="lines+markers", name=label(method + when, 44),
                line={"color": inks[method].colour, "dash": dash, "width": 2 if not when else 1.25},
                marker={"size": 6 if not when else 4},
                hovertemplate="%{x:.2f} came true %{y:.2f}, %{customdata} rows<extra>%{fullData.name}</extra>",
            )  # fmt: skip
    figure.update_xaxes(title_text="predicted probability", range=[-0.01, 1.02])
    figure.update_yaxes(title_text="share that came true", range=[-0.02, 1.03])
    return figure
