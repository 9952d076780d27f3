"""How well the classes are separated: ROC and precision–recall curves."""

from collections.abc import Iterator, Mapping

import numpy as np

from coterie.measure.measures import Array
from coterie.report.canvas import Figure, blank, label, legend_below
from coterie.report.predicted import Predicted
from coterie.report.series import thinned
from coterie.report.theme import DASHES, PALETTE, Ink

MOST_POINTS = 150


def roc(positive: Array, score: Array) -> tuple[Array, Array]:
    """False and true positive rates, from the highest threshold to the lowest."""
    hits, misses = _counts(positive, score)
    return _thin(misses / misses[-1], hits / hits[-1])


def precision_recall(positive: Array, score: Array) -> tuple[Array, Array]:
    """Recalls and the precision at each, from the highest threshold to the lowest."""
    hits, misses = (each[1:] for each in _counts(positive, score))
    recall, precision = hits / hits[-1], hits / (hits + misses)
    return _thin(np.append(0.0, recall), np.append(precision[0], precision))


def curves(found: Mapping[str, Predicted], inks: Mapping[str, Ink]) -> tuple[Figure, Figure]:
    """Both figures: of two classes a line for each method, of more one for each class, dotted for later methods."""
    first, second = (blank(height=400, hovermode="closest", legend=legend_below()) for _ in range(2))
    named = set[str]()
    for name, method, colour, dash, positive, score in _lines(found, inks):
        style = {
            "mode": "lines",
            "line": {"color": colour, "dash": dash, "width": 2},
            "name": label(name, 40),
            "legendgroup": name,
            "showlegend": name not in named,
            "hovertemplate": f"%{{x:.2f}}, %{{y:.2f}}<extra>{label(name)} {label(method)}</extra>",
        }
        named.add(name)
        for figure, (x, y) in ((first, roc(positive, score)), (second, precision_recall(positive, score))):
            figure.add_scatter(x=x, y=y, **style)
    first.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": "#8C8C8C", "width": 1}, showlegend=False,
                      hoverinfo="skip")  # fmt: skip
    for figure, across, up in ((first, "false positive rate", "sensitivity"), (second, "recall", "precision")):
        figure.update_xaxes(title_text=across, range=[-0.01, 1.01])
        figure.update_yaxes(title_text=up, range=[-0.01, 1.03])
    return first, second


def _lines(
    found: Mapping[str, Predicted], inks: Mapping[str, Ink]
) -> Iterator[tuple[str, str, str, str, Array, Array]]:
    """Of every line its name in the legend, its method, colour and dash, who is positive, and the scores."""
    for place, (method, each) in enumerate(found.items()):
        for c, name in enumerate(each.names):
            positive = each.labels == c
            if not 0 < positive.sum() < len(positive):
                continue
            if len(each.names) > 2:
                colour, dash = PALETTE[c % len(PALETTE)], DASHES[min(place, len(DASHES) - 1)]
                yield name, method, colour, dash, positive, each.values[:, c]
            elif c == 1:
                yield method, "", inks[method].colour, inks[method].dash, positive, each.values[:, c]


def _counts(positive: Array, score: Array) -> tuple[Array, Array]:
    """How many of either kind are above each threshold, from none to all; equal scores are on one side."""
    order = np.argsort(-score, kind="stable")
    ends = np.append(np.diff(score[order]) != 0, True)
    hits = np.cumsum(positive[order])[ends]
    total = np.flatnonzero(ends) + 1
    return np.append(0, hits), np.append(0, total - hits)


def _thin(x: Array, y: Array) -> tuple[Array, Array]:
    kept = thinned(len(x), MOST_POINTS)
    return x[kept].astype(np.float32), y[kept].astype(np.float32)
