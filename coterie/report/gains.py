"""What each silo gains over training alone, as a figure: a point and its interval per silo, the best first."""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.measure.verdict_words import OUTCOMES, ranked
from coterie.report.canvas import Figure, axis_labels, blank, label

COLOURS = {"better": "#009E73", "worse": "#D55E00", "equivalent": "#0072B2", "undecided": "#8C8C8C"}
NAMED = 60


def gains(standings: Sequence[Mapping[str, Any]], unit: str) -> Figure:
    """From the `silos` of a verdict."""
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
