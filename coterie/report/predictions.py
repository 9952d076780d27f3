"""How the predictions of the saved models look: separation, calibration and confusion of classes, errors of numbers."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

import numpy as np

from coterie.measure.measures import MOST_CLASSES, Array, reliability
from coterie.report.canvas import Figure, blank, label, legend_below
from coterie.report.html import cell, table
from coterie.report.predicted import Predicted
from coterie.report.series import thinned
from coterie.report.theme import DASHES, PALETTE, Ink

MOST_POINTS = 150  # of a curve
MOST_DOTS = 1500
MOST_BARS = 40
PAIRS = 10


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
    first, second = _square("false positive rate", "sensitivity"), _square("recall", "precision")
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
    _add_diagonal(first, [0, 1])
    for figure in (first, second):
        figure.update_xaxes(range=[-0.01, 1.01])
        figure.update_yaxes(range=[-0.01, 1.03])
    return first, second


def bins(labels: Array, values: Array) -> list[tuple[float, float, int]]:
    """Of ten bins: the mean probability, the share that came true, how many; of more than two classes the likeliest."""
    if values.shape[1] == 2:
        return reliability(values[:, 1], np.asarray(labels == 1, dtype=float))
    return reliability(values.max(1), np.asarray(values.argmax(1) == labels, dtype=float))


def calibration(found: Mapping[str, Predicted], inks: Mapping[str, Ink]) -> Figure:
    """Whether probabilities come true: a line for each method, and dotted what its models gave before tempering."""
    figure = _square("predicted probability", "share that came true")
    _add_diagonal(figure, [0, 1])
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
    figure.update_xaxes(range=[-0.01, 1.02])
    figure.update_yaxes(range=[-0.02, 1.03])
    return figure


def confusion(found: Predicted) -> Array:
    """(C, C) rows of each class (row) by what was predicted (column)."""
    count = len(found.names)
    return np.bincount(found.labels * count + found.guesses, minlength=count * count).reshape(count, count)


def worst_pairs(found: Predicted) -> list[tuple[str, str, int]]:
    """Class, what it was taken for, how often: the ten most frequent."""
    counts = confusion(found)
    np.fill_diagonal(counts, 0)
    order = [int(i) for i in np.argsort(-counts, axis=None, kind="stable")[:PAIRS]]
    places = [divmod(i, len(counts)) for i in order]
    return [(found.names[a], found.names[b], int(counts[a, b])) for a, b in places if counts[a, b]]


def matrix(found: Predicted) -> str:
    """Which classes are taken for which, as HTML; a cell is the darker the larger its share of the row.

    Of very many classes the pairs that are confused most.
    """
    if len(found.names) > MOST_CLASSES:
        rows = {f"{a} taken for {b}": cell(str(n)) for a, b, n in worst_pairs(found)}
        return table(["pairs confused most", "rows"], rows)
    counts = confusion(found)
    body = "".join(
        f"<tr><th scope='row' title='{escape(name)}'>{escape(name)}</th>"
        + "".join(f"<td style='--share:{n / max(row.sum(), 1):.2f}'>{n:,}</td>" for n in row)
        + "</tr>"
        for name, row in zip(found.names, counts, strict=True)
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in found.names)
    return (
        "<div class='scroll'><table class='confusion'><thead><tr><th>true</th>"
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def scatter(found: Mapping[str, Predicted], inks: Mapping[str, Ink]) -> Figure:
    """Predicted numbers against the true ones, a dot for each test row; of very many rows an even choice."""
    figure = _square("true", "predicted")
    every = np.concatenate([each.labels for each in found.values()])
    _add_diagonal(figure, [float(every.min()), float(every.max())])
    for method, each in found.items():
        kept = thinned(len(each.labels), MOST_DOTS)
        figure.add_scatter(
            x=each.labels[kept].astype(np.float32), y=each.values[kept].astype(np.float32), mode="markers",
            name=label(method), marker={"color": inks[method].colour, "size": 5, "opacity": 0.55},
            hovertemplate="true %{x:.4g}, predicted %{y:.4g}<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    return figure


def histogram(found: Predicted, ends: tuple[float, float] | None = None) -> tuple[Array, Array]:
    """The middle of each bar of predicted minus true, and how many rows it holds."""
    bars = int(np.clip(2 * np.sqrt(len(found.labels)), 8, MOST_BARS))
    counts, edges = np.histogram(found.values - found.labels, bins=bars, range=ends)
    return (edges[1:] + edges[:-1]) / 2, counts


def residuals(found: Mapping[str, Predicted], inks: Mapping[str, Ink]) -> Figure:
    """How far off, and to which side."""
    off = np.concatenate([each.values - each.labels for each in found.values()])
    ends = (float(off.min()), float(off.max()))
    figure = blank(height=400, barmode="overlay", bargap=0, legend=legend_below())
    for method, each in found.items():
        x, y = histogram(each, ends)
        figure.add_bar(
            x=x, y=y, name=label(method), marker_color=inks[method].faded(0.55),
            hovertemplate="%{x:.3g}: %{y} rows<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text="predicted minus true")
    figure.update_yaxes(title_text="test rows")
    return figure


def _square(across: str, up: str) -> Figure:
    figure = blank(height=400, hovermode="closest", legend=legend_below())
    figure.update_xaxes(title_text=across)
    return figure.update_yaxes(title_text=up)


def _add_diagonal(figure: Figure, ends: Sequence[float]) -> None:
    """The line of equal x and y."""
    line = {"color": "#8C8C8C", "width": 1}
    figure.add_scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, hoverinfo="skip")


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
