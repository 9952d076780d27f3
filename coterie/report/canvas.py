"""What every figure of the report starts from."""

import html
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from coterie.errors import BadInput
from coterie.report.theme import PALETTE

Figure = Any  # plotly.graph_objects.Figure: plotly is imported only where a figure is drawn
FLAT = 12  # the names of so many silos have room beside each other


def plotly_objects() -> ModuleType:
    """plotly.graph_objects, or an error that says how to get it: a machine that only trains has no plotly."""
    try:
        import plotly.graph_objects
    except ImportError:
        raise BadInput("figures are drawn with plotly, which is not installed here: pip install plotly") from None
    return plotly.graph_objects  # type: ignore[no-any-return]


def blank(**layout: Any) -> Figure:
    """A figure without a background; the page's script gives it the colours of the theme."""
    axis = {"automargin": True, "zeroline": False, "title": {"standoff": 8}}
    common = {
        "template": "none",
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 12, "t": 28, "b": 8},
        "font": {"size": 13},
        "xaxis": axis,
        "yaxis": axis,
    }
    return plotly_objects().Figure(layout={**common, **layout})


def legend_below() -> dict[str, Any]:
    """A legend that takes no width from a narrow page."""
    return {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"}


def label(name: object, longest: int = 28) -> str:
    """A name as Plotly shall show it: cut when very long, and never read as the markup Plotly understands."""
    text = str(name)
    return html.escape(text if len(text) <= longest else text[: longest - 1] + "…", quote=False)


def axis_labels(names: Iterable[object], longest: int = 28) -> list[str]:
    """Names for a category axis, which would merge two whose names were cut to the same text."""
    short = [label(name, longest) for name in names]
    return [text if short.count(text) == 1 else f"{text} #{i + 1}" for i, text in enumerate(short)]


def heat_map(figure: Figure, title: str, hover: str, **cells: Any) -> Figure:
    """A cell for each pair of names; `title` says what colours are of, `hover` what pointing at one shows."""
    bar = {"thickness": 10, "outlinewidth": 0, "title": {"text": title}}
    figure.add_heatmap(hovertemplate=f"{hover}<extra></extra>", colorbar=bar, **cells)
    figure.update_xaxes(type="category", showgrid=False)
    return figure.update_yaxes(type="category", showgrid=False, autorange="reversed")


def stacked_bars(names: Sequence[object], parts: Mapping[Any, Iterable[float]], hover: str) -> Figure:
    """A bar for each name, its parts one above the other; `hover` is what pointing at one shows before its name."""
    figure = blank(height=420, barmode="stack", legend={**legend_below(), "traceorder": "normal"}, bargap=0.15)
    for place, (part, heights) in enumerate(parts.items()):
        figure.add_bar(
            x=axis_labels(names, longest=18),
            y=heights,
            name=label(part),
            marker_color=PALETTE[place % len(PALETTE)],
            marker_line_width=0,
            hovertemplate=f"%{{x}}: {hover} %{{fullData.name}}<extra></extra>",
        )
    return figure.update_xaxes(type="category", tickangle=-90 if len(names) > FLAT else None)
