"""What every figure of the report starts from."""

import html
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from coterie.errors import BadInput

Figure = Any  # plotly.graph_objects.Figure: plotly is imported only where a figure is drawn


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
