"""Which method is significantly better than which: methods × methods."""

from collections.abc import Sequence

import numpy as np
from pandas import DataFrame

from coterie.measure.metrics import lower_better, plain_measure
from coterie.measure.significance import ALPHA
from coterie.report.canvas import Figure, axis_labels, blank, heat_map
from coterie.report.clusters import Array
from coterie.report.collaboration import DIVERGING
from coterie.runs.read import Run


def matrix(pairs: DataFrame, methods: Sequence[str], lower_better: bool) -> tuple[Array, Array]:
    """Row minus column, positive where the row is better, and p after Holm: methods × methods, NaN on the diagonal."""
    once = pairs.pivot(index="method", columns="other").reindex(index=methods)  # each pair is there one way round
    better, p = (once[key].reindex(columns=methods).to_numpy(float) for key in ("mean_difference", "p_holm"))
    better = np.where(np.isnan(better), -better.T, better)
    return -better if lower_better else better, np.where(np.isnan(p), p.T, p)


def less_is_better(run: Run) -> bool:
    """Whether it is so of the measure that a run's pairs of methods were compared by."""
    pairs = run.significance
    return lower_better(
        plain_measure(run.methods) if pairs is None or "measure" not in pairs else str(pairs["measure"].iloc[0])
    )


def marked(better: Array, p: Array) -> tuple[Array, float]:
    """The differences that are significant, nought in place of the others, and the size of the largest."""
    shown = np.where(np.isnan(better), np.nan, np.where(p < ALPHA, better, 0))
    return shown, float(np.nanmax(np.abs(shown), initial=0)) or 1.0


def significance(pairs: DataFrame, methods: Sequence[str], lower_better: bool) -> Figure:
    """Colour only where the difference is significant; point at a cell for the figures."""
    better, p = matrix(pairs, methods, lower_better)
    names = axis_labels(methods, longest=16)
    shown, largest = marked(better, p)
    figure = heat_map(
        blank(height=max(320, 150 + 24 * len(methods))),
        "lead",
        "%{y} over %{x}: %{customdata[0]:+.3g}, p = %{customdata[1]:.2g}",
        z=shown,
        x=names,
        y=names,
        customdata=np.dstack([np.nan_to_num(better), np.nan_to_num(p)]),
        text=[
            ["" if not ok else "▲" if v > 0 else "▼" for ok, v in zip(*both, strict=True)]
            for both in zip(p < ALPHA, better, strict=True)
        ],
        texttemplate="%{text}",
        textfont={"size": 10},
        colorscale=DIVERGING,
        zmin=-largest,
        zmax=largest,
        xgap=1,
        ygap=1,
        hoverongaps=False,
    )
    figure.update_yaxes(ticks="")
    return figure.update_xaxes(ticks="", tickangle=-90, side="top")
