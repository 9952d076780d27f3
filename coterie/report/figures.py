"""The pictures of the report, each a function that returns a Plotly figure; a method has one colour in all of them."""

import html
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from pandas import DataFrame

from coterie.errors import BadInput
from coterie.measure.metrics import by_round, lower_better, score_of
from coterie.measure.table import error_of
from coterie.report.theme import PALETTE, Ink

Figure = Any  # plotly.graph_objects.Figure: plotly is imported only where a figure is drawn
Array = np.ndarray[Any, Any]


def plotly_objects() -> ModuleType:
    """plotly.graph_objects, or an error that says how to get it: a machine that only trains has no plotly."""
    try:
        import plotly.graph_objects
    except ImportError:
        raise BadInput("the report draws with plotly, which is not installed here: pip install plotly") from None
    return plotly.graph_objects  # type: ignore[no-any-return]


def label(name: object, longest: int = 28) -> str:
    """A name as Plotly shall show it: cut when very long, and never read as the markup Plotly understands."""
    text = str(name)
    return html.escape(text if len(text) <= longest else text[: longest - 1] + "…", quote=False)


def axis_labels(names: Iterable[object], longest: int = 28) -> list[str]:
    """Names for a category axis, which would merge two whose names were cut to the same text."""
    short = [label(name, longest) for name in names]
    return [text if short.count(text) == 1 else f"{text} #{i + 1}" for i, text in enumerate(short)]


def accuracy_curves(results: DataFrame, inks: Mapping[str, Ink]) -> Figure:
    """The mean over silos of the test accuracy by round (of the error where there is none), one line a method."""
    measure = score_of(results["measure"].unique())
    figure = blank(height=460, hovermode="x unified", legend=_legend_below())
    figure.update_xaxes(title_text="round")
    figure.update_yaxes(title_text=f"test {measure}" if lower_better(measure) else "test accuracy, %")
    drawn = results[(results["split"] == "test") & results["measure"].isin([measure, f"{measure}_cloud"])]
    runs = dict(list(drawn.groupby(["method", "measure"], observed=True)))
    for method, ink in inks.items():
        if (method, measure) in runs:
            _add_curve(figure, runs[method, measure], method, ink)
        if (method, f"{measure}_cloud") in runs:
            _add_curve(figure, runs[method, f"{measure}_cloud"], f"{method} (cloud)", ink, cloud=True)
    return figure


def silo_distribution(summary: Mapping[str, Mapping[str, Any]], inks: Mapping[str, Ink]) -> Figure:
    """Every silo's score at the best round: a box and a dot per silo for each method."""
    go = plotly_objects()
    error = error_of(summary)
    figure = blank(height=110 + 58 * len(summary), showlegend=False)
    for (method, scores), shown in zip(summary.items(), axis_labels(summary), strict=True):
        figure.add_box(
            x=list(scores["per_silo"].values()),
            y=[shown] * len(scores["per_silo"]),
            text=[label(silo) for silo in scores["per_silo"]],
            name=shown,
            orientation="h",
            boxpoints="all",
            jitter=0.5,
            pointpos=0,
            marker=go.box.Marker(color=inks[method].colour, size=5, opacity=0.75),
            line=go.box.Line(color=inks[method].colour, width=1.5),
            fillcolor=inks[method].faded(0.15),
            hovertemplate="%{text}: %{x:.4g}<extra></extra>" if error else "%{text}: %{x:.2f}%<extra></extra>",
            hoveron="points",
        )
    figure.update_xaxes(title_text=f"test {error}" if error else "test accuracy, %")
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def label_distribution(labels: DataFrame) -> Figure:
    """How many samples of each label every silo holds, from columns `silo`, `label`, `count`."""
    missing = {"silo", "label", "count"} - set(labels.columns)
    if missing:
        raise BadInput(f"labels: missing columns {', '.join(sorted(missing))}")
    plotly_objects()
    counts = labels.pivot_table(index="silo", columns="label", values="count", aggfunc="sum", sort=False).fillna(0)
    counts = counts[sorted(counts.columns, key=_natural)]
    many = len(counts.columns) > 20
    figure = blank(
        height=420,
        barmode="stack",
        showlegend=not many,
        legend={**_legend_below(), "traceorder": "normal"},
        bargap=0.15,
    )
    colours = _class_colours(len(counts.columns))
    for (name, column), colour in zip(counts.items(), colours, strict=True):
        figure.add_bar(
            x=axis_labels(counts.index, longest=18),
            y=column.to_numpy(dtype=float),
            name=label(name),
            marker_color=colour,
            marker_line_width=0,
            hovertemplate="%{x}: %{y:,} of label %{fullData.name}<extra></extra>",
        )
    figure.update_xaxes(type="category")
    figure.update_yaxes(title_text="samples")
    return figure


def costs(summary: Mapping[str, Mapping[str, Any]], inks: Mapping[str, Ink], keys: Mapping[str, str]) -> Figure:
    """Horizontal bars, one a method, of costs that share a unit: `keys` maps a key of the summary to its legend."""
    plotly_objects()
    figure = blank(
        height=110 + (26 * len(keys) + 14) * len(summary), barmode="group", bargap=0.35, showlegend=len(keys) > 1,
        legend=_legend_below(),
    )  # fmt: skip
    for i, (key, name) in enumerate(keys.items()):
        scale = 1e-6 if key.startswith("bytes") else 1.0
        values = [scores.get(key) for scores in summary.values()]
        figure.add_bar(
            x=[None if value is None else value * scale for value in values],
            y=axis_labels(summary),
            name=name,
            orientation="h",
            marker_color=[inks[method].faded(1 - 0.5 * i) for method in summary],
            hovertemplate="%{y}: %{x:,.4~g}<extra>" + name + "</extra>",
        )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def blank(**layout: Any) -> Figure:
    """A figure without a background; the page's script gives it the colours of the theme."""
    go = plotly_objects()
    figure = go.Figure(layout={"template": "none", "autosize": True, **layout})
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 8, "r": 12, "t": 28, "b": 8},
        font={"size": 13},
    )
    figure.update_xaxes(automargin=True, zeroline=False, title_standoff=8)
    figure.update_yaxes(automargin=True, zeroline=False, title_standoff=8)
    return figure


def _add_curve(figure: Figure, runs: DataFrame, title: str, ink: Ink, cloud: bool = False) -> None:
    measure = str(runs["measure"].iloc[0])
    seeds = [by_round(run, measure, "test").mean(axis=1) for _, run in runs.groupby("seed")]
    curves = DataFrame(seeds).T.sort_index() * (1 if lower_better(measure) else 100)
    # A diverged silo makes its round infinite, which Plotly leaves out of the line as a gap.
    mean = curves.mean(axis=1).replace(np.inf, np.nan)
    rounds = curves.index.to_numpy()
    name = label(title, longest=36)
    if curves.shape[1] > 1 and not cloud:
        finite = curves[np.isfinite(mean)]
        low, high, within = finite.min(axis=1), finite.max(axis=1), finite.index.to_numpy()
        figure.add_scatter(
            x=np.concatenate([within, within[::-1]]),
            y=np.concatenate([high, low[::-1]]),
            fill="toself",
            fillcolor=ink.faded(0.15),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            legendgroup=name,
            showlegend=False,
        )
    figure.add_scatter(
        x=rounds,
        y=mean.to_numpy(),
        name=name,
        legendgroup=name,
        mode="lines" if len(rounds) > 30 else "lines+markers",
        line={"color": ink.colour, "width": 1.5 if cloud else 2.25, "dash": "dash" if cloud else ink.dash},
        marker={"size": 5},
        hovertemplate="%{y:.4g}" if lower_better(measure) else "%{y:.2f}%",
    )


def _legend_below() -> dict[str, Any]:
    return {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"}


def _natural(name: object) -> tuple[int, float, str]:
    """2 before 10, and words after numbers."""
    try:
        return (0, float(str(name)), "")
    except ValueError:
        return (1, 0.0, str(name))


def _class_colours(count: int) -> list[str]:
    if count <= len(PALETTE):
        return PALETTE[:count]
    from plotly.colors import sample_colorscale

    return list(sample_colorscale("Viridis", np.linspace(0, 1, count).tolist()))
