"""The figures of methods: curves, scores, distributions, costs; and of the silos' labels. A method has one colour."""

from collections.abc import Mapping, Sequence
from typing import Any

from pandas import DataFrame

from coterie.errors import BadInput
from coterie.measure.measures import measure_of
from coterie.measure.verdict_words import OUTCOMES, ranked
from coterie.report.canvas import Figure, axis_labels, blank, heat_map, label, legend_below, stacked_bars
from coterie.report.series import class_counts, curve
from coterie.report.table import Scores, judged_scores, method_scores
from coterie.report.theme import PALETTE, Ink

COLOURS = {"better": "#009E73", "worse": "#D55E00", "equivalent": "#0072B2", "undecided": "#8C8C8C"}
NAMED = 60  # silos whose gains have room for their names
MOST_BARS = len(PALETTE)  # more classes than colours are a map, not bars


def curves(results: DataFrame, inks: Mapping[str, Ink], measure: str = "accuracy", split: str = "test") -> Figure:
    """The mean over silos by round, one line a method; a method's cloud model is dashed."""
    data = {"test": "test", "train": "training", "validation": "validation"}[split]
    figure = blank(height=460, hovermode="x unified", legend=legend_below())
    figure.update_xaxes(title_text="round")
    title = measure if measure == "loss" else measure_of(measure).title
    figure.update_yaxes(title_text=f"{data} {title}" + (", %" if measure == "accuracy" else ""))
    for method, ink in inks.items():
        _add_curve(figure, curve(results, method, measure, split), method, measure, ink)
        _add_curve(figure, curve(results, method, f"{measure}_cloud", split), f"{method} (cloud)", measure, ink, True)
    return figure


def bars(summary: Scores, inks: Mapping[str, Ink], by: str | None = None) -> Figure:
    """Each method's score, its standard deviation over seeds, and what its paper reports."""
    scores, deviations, title = method_scores(summary, by)
    names, values, spread = axis_labels(summary), list(scores.values()), list(deviations.values())
    published = [scores.get("published") for scores in summary.values()]
    figure = blank(
        height=90 + 28 * len(summary), bargap=0.35, legend=legend_below(), showlegend=any(published), hovermode="y"
    )
    figure.add_bar(
        x=values,
        y=names,
        orientation="h",
        name="ours",
        marker_color=[inks[method].colour for method in summary],
        error_x={"type": "data", "array": spread, "visible": any(s is not None for s in spread), "thickness": 1.5},
        hovertemplate="%{x:.4~g}<extra>%{y}</extra>",
    )
    if any(published):
        figure.add_scatter(
            x=published,
            y=names,
            mode="markers",
            name="paper",
            marker={"symbol": "diamond", "size": 10, "color": "#ffffff", "line": {"width": 2, "color": "#1b2127"}},
            hovertemplate="paper %{x:.2f}<extra></extra>",
        )
    figure.update_xaxes(title_text=title, rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def silo_distribution(summary: Scores, inks: Mapping[str, Ink], by: str | None = None) -> Figure:
    """Every silo's score at the picked round: a box and a dot per silo for each method."""
    scored, title, _ = judged_scores(summary, by)
    figure = blank(height=90 + 44 * len(summary), showlegend=False)
    for (method, silos), shown in zip(scored.items(), axis_labels(summary), strict=True):
        figure.add_box(
            x=list(silos.values()),
            y=[shown] * len(silos),
            text=[label(silo) for silo in silos],
            name=shown,
            orientation="h",
            boxpoints="all",
            jitter=0.5,
            pointpos=0,
            marker={"color": inks[method].colour, "size": 5, "opacity": 0.75},
            line={"color": inks[method].colour, "width": 1.5},
            fillcolor=inks[method].faded(0.15),
            hovertemplate="%{text}: %{x:.2f}%<extra></extra>" if "%" in title else "%{text}: %{x:.4g}<extra></extra>",
            hoveron="points",
        )
    figure.update_xaxes(title_text=title)
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def gains(standings: Sequence[Mapping[str, Any]], unit: str) -> Figure:
    """What each silo gains over training alone, the best first: points and intervals, from the `silos` of a verdict."""
    shown = [each for each in ranked(standings) if each["gain"] is not None]
    places = dict(zip([s["silo"] for s in shown], axis_labels((s["silo"] for s in shown), 22), strict=True))
    few = len(shown) <= NAMED
    figure = blank(
        height=100 + int(22 * len(shown) if few else max(420, 2.5 * len(shown))),
        legend={"orientation": "h", "y": 1, "yanchor": "bottom"},
    )
    for outcome, name in OUTCOMES.items():
        part = [s for s in shown if s["outcome"] == outcome]
        if not part:
            continue
        figure.add_scatter(
            x=[s["gain"] for s in part],
            y=[places[s["silo"]] for s in part],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [0 if s["high"] is None else s["high"] - s["gain"] for s in part],
                "arrayminus": [0 if s["low"] is None else s["gain"] - s["low"] for s in part],
                "thickness": 1.5 if few else 0.7,
                "width": 0,
            },
            mode="markers",
            name=name,
            marker={"color": COLOURS[outcome], "size": 8 if few else 5},
            customdata=[label(s["silo"]) for s in part],
            hovertemplate="%{customdata}: %{x:.3g}" + unit + "<extra>" + name + "</extra>",
        )
    drawn_in = [s for s in shown if s.get("shrunk") is not None]
    if drawn_in:
        figure.add_scatter(
            x=[s["shrunk"] for s in drawn_in],
            y=[places[s["silo"]] for s in drawn_in],
            mode="markers",
            name="shrunken",
            marker={"symbol": "line-ns-open", "size": 9 if few else 4, "color": "#CC79A7", "line": {"width": 2}},
            hovertemplate="%{y}, shrunken: %{x:.3g}" + unit + "<extra></extra>",
        )
    figure.add_vline(x=0, line={"width": 1, "color": "#8C8C8C"})
    figure.update_xaxes(title_text=f"gain over training alone{',' * bool(unit)}{unit}")
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=list(places.values())[::-1], showticklabels=few
    )
    return figure


def costs(summary: Scores, inks: Mapping[str, Ink], keys: Mapping[str, str]) -> Figure:
    """Horizontal bars, one a method, of costs that share a unit: `keys` maps a key of the summary to its legend."""
    figure = blank(
        height=110 + (18 * len(keys) + 10) * len(summary), barmode="group", bargap=0.35, showlegend=len(keys) > 1,
        legend=legend_below(),
    )  # fmt: skip
    for i, (key, name) in enumerate(keys.items()):
        opacity = 1 - 0.5 * i
        both = {"orientation": "h", "offsetgroup": name, "legendgroup": name}
        figure.add_bar(
            x=[None], y=[None], name=name, marker_color=f"rgba(140,140,140,{opacity})", **both
        )  # in the legend
        scale = 1e-6 if key.startswith("bytes") else 1.0
        values = [scores.get(key) for scores in summary.values()]
        figure.add_bar(
            x=[None if value is None else value * scale for value in values],
            y=axis_labels(summary),
            showlegend=False,
            marker_color=[inks[method].faded(opacity) for method in summary],
            hovertemplate="%{y}: %{x:,.4~g}<extra>" + name + "</extra>",
            **both,
        )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def label_distribution(labels: DataFrame) -> Figure:
    """How many samples of each label every silo holds, from columns `silo`, `label`, `count`."""
    missing = {"silo", "label", "count"} - set(labels.columns)
    if missing:
        raise BadInput(f"labels: missing columns {', '.join(sorted(missing))}")
    counts = class_counts(labels).astype(float)
    if len(counts.columns) <= MOST_BARS:
        return stacked_bars(counts.index, counts, "%{y:,} of label").update_yaxes(title_text="samples")
    silos, names = (axis_labels(each, longest=18) for each in (counts.index, counts.columns))
    figure = heat_map(
        blank(height=480), "samples", "%{x}: %{z:,} of label %{y}",
        z=counts.to_numpy().T, x=silos, y=names, colorscale="Viridis",
    )  # fmt: skip
    return figure.update_yaxes(title_text="label")


def _add_curve(figure: Figure, found: DataFrame, title: str, measure: str, ink: Ink, cloud: bool = False) -> None:
    if found.empty:
        return
    name = label(title, longest=36)
    inside = found.dropna()
    if not cloud and (inside["high"] > inside["low"]).any():
        figure.add_scatter(
            x=[*inside.index, *inside.index[::-1]],
            y=[*inside["high"], *inside["low"][::-1]],
            fill="toself",
            fillcolor=ink.faded(0.15),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            legendgroup=name,
            showlegend=False,
        )
    figure.add_scatter(
        x=found.index.to_numpy(),
        y=found["mean"].to_numpy(),
        name=name,
        legendgroup=name,
        mode="lines" if len(found) > 3 else "lines+markers",
        line={"color": ink.colour, "width": 1.25 if cloud else 2.25, "dash": "dash" if cloud else ink.dash},
        marker={"size": 4},
        hovertemplate="%{y:.2f}%" if measure == "accuracy" else "%{y:.4g}",
    )
