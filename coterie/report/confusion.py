"""Which classes are taken for which, as a table; of very many classes the pairs that are confused most."""

from html import escape

import numpy as np

from coterie.measure.measures import MOST_CLASSES, Array
from coterie.report.html import cell, table
from coterie.report.predicted import Predicted

PAIRS = 10


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
    """As HTML; a cell is the darker the larger its share of the row."""
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
