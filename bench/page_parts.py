"""What all pages of results are made of: tables, spreads over seeds, who is significantly ahead."""

import statistics
from collections.abc import Sequence

from finished_runs import Cell

from coterie.measure.significance import ALPHA, compare

SCORES = {  # of each seed
    "bmta": "BMTA",
    "weighted": "weighted",
    "val_picked": "val-picked",
    "last": "last",
    "bottom_decile": "bottom decile",
    "bmta_cloud": "cloud BMTA",
    "last_cloud": "cloud last",
    "unseen": "unseen",
}
OWN = {  # of each paper
    "amp": ("fedamp", "heurfedamp"),
    "acs": ("fedacs",),
    "apple": ("apple", "apple-0"),
    "em": ("fedem",),
    "synthetic": ("fedem",),
}


def own_methods(name: str, cell: Cell) -> list[str]:
    """The methods of the study's own paper that were run."""
    return [method for method in OWN.get(name.partition("-")[0], ()) if method in cell.methods()]


def significant(name: str, cell: Cell) -> list[str]:
    """Of each of the paper's own methods: what it is ahead of and behind, beyond chance."""
    own, methods = own_methods(name, cell), cell.methods()
    if not own or len(methods) < 2:
        return []
    found = compare({method: cell.per_silo(method) for method in (*own, *(m for m in methods if m not in own))})
    sentences = []
    for method in own:
        pairs = [pair for pair in found.itertuples() if pair.method == method and pair.p_holm < ALPHA]
        ahead = [pair.other for pair in pairs if pair.mean_difference > 0]
        behind = [pair.other for pair in pairs if pair.mean_difference < 0]
        sentences.append(f"{method} is ahead of {', '.join(ahead) or 'none'}, behind {', '.join(behind) or 'none'}.")
    return sentences


def spread(values: Sequence[float], digits: int = 2) -> str:
    """A mean over seeds, with their standard deviation where there are several."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
