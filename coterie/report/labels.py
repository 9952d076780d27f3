"""Who holds which class."""

from pandas import DataFrame

from coterie.errors import BadInput
from coterie.report.canvas import Figure, axis_labels, blank, stacked_bars
from coterie.report.series import class_counts
from coterie.report.theme import PALETTE

MOST_BARS = len(PALETTE)  # more classes than colours are a map, not bars


def label_distribution(labels: DataFrame) -> Figure:
    """How many samples of each label every silo holds, from columns `silo`, `label`, `count`."""
    missing = {"silo", "label", "count"} - set(labels.columns)
    if missing:
        raise BadInput(f"labels: missing columns {', '.join(sorted(missing))}")
    counts = class_counts(labels)
    if len(counts.columns) > MOST_BARS:
        return _map(counts)
    return stacked_bars(counts.index, counts.astype(float), "%{y:,} of label").update_yaxes(title_text="samples")


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
