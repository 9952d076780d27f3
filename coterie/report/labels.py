"""Who holds which class."""

from pandas import DataFrame

from coterie.errors import BadInput
from coterie.report.canvas import Figure, axis_labels, blank, label, legend_below
from coterie.report.series import class_counts
from coterie.report.theme import PALETTE

FLAT = 12  # the names of so many silos have room beside each other
MOST_BARS = len(PALETTE)  # more classes than colours are a map, not bars


def label_distribution(labels: DataFrame) -> Figure:
    """How many samples of each label every silo holds, from columns `silo`, `label`, `count`."""
    missing = {"silo", "label", "count"} - set(labels.columns)
    if missing:
        raise BadInput(f"labels: missing columns {', '.join(sorted(missing))}")
    counts = class_counts(labels)
    return _bars(counts) if len(counts.columns) <= MOST_BARS else _map(counts)


def _bars(counts: DataFrame) -> Figure:
    figure = blank(height=420, barmode="stack", legend={**legend_below(), "traceorder": "normal"}, bargap=0.15)
    for (name, column), colour in zip(counts.items(), PALETTE, strict=False):
        figure.add_bar(
            x=axis_labels(counts.index, longest=18),
            y=column.to_numpy(dtype=float),
            name=label(name),
            marker_color=colour,
            marker_line_width=0,
            hovertemplate="%{x}: %{y:,} of label %{fullData.name}<extra></extra>",
        )
    figure.update_xaxes(type="category", tickangle=-90 if len(counts) > FLAT else None)
    figure.update_yaxes(title_text="samples")
    return figure


def _map(counts: DataFrame) -> Figure:
    figure = blank(height=480)
    figure.add_heatmap(
        z=counts.to_numpy(dtype=float).T,
        x=axis_labels(counts.index, longest=18),
        y=axis_labels(counts.columns, longest=18),
        colorscale="Viridis",
        hovertemplate="%{x}: %{z:,} of label %{y}<extra></extra>",
        colorbar={"thickness": 10, "outlinewidth": 0, "title": {"text": "samples"}},
    )
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False, title_text="label", autorange="reversed")
    return figure
