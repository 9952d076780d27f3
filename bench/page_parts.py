"""What all pages of results are made of: tables, spreads over seeds, who is significantly ahead."""

import statistics
from collections.abc import Sequence

import numpy as np
from finished_runs import Cell
from leaderboard import apart, per_silo

from coterie.measure.paired import Estimate
from coterie.measure.significance import ALPHA, compare, holm, signed_rank

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
REFERENCES = ("fedavg", "separate")  # what methods are held against where no paper has one of its own


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


def paired(name: str, cell: Cell) -> list[str]:
    """Of a study without a paper's own methods: each method against one model for all and against training alone."""
    methods = [method for method in cell.methods() if cell.values(method, "val_picked")]
    silos = {} if name.partition("-")[0] in OWN else per_silo(cell, methods)
    pairs = [
        (method, other)
        for i, other in enumerate(REFERENCES)
        for method in silos
        if other in silos and method not in REFERENCES[: i + 1]
    ]
    leads = [apart(silos[method], silos[other]) for method, other in pairs]
    kept = [(pair, lead) for pair, lead in zip(pairs, leads, strict=True) if len(lead) > 1]
    if not kept:
        return []
    found = [signed_rank(lead) for _, lead in kept]
    rows = []
    for ((method, other), lead), p, corrected in zip(kept, found, holm(np.array(found)), strict=True):
        mean = Estimate.around(lead.mean(), lead.std(ddof=1) / len(lead) ** 0.5, len(lead) - 1)
        value, low, high = (f"{round(each, 2) + 0:+.2f}" for each in (mean.value, mean.low, mean.high))  # no -0.00
        rows.append([method, other, value, f"{low} to {high}", f"{p:.2g}", f"{corrected:.2g}"])
    fewest = min(len(lead) for _, lead in kept)
    return [
        f"Paired over {fewest} silos (their means over the seeds that both methods have, at the "
        "round that validation data picked): the mean difference with Student's 95% interval, and Wilcoxon's "
        "signed-rank test with Holm's correction over this table:",
        "",
        *markdown(["method", "against", "mean difference", "95% interval", "p", "p (Holm)"], rows),
        "",
    ]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """A mean over seeds, with their standard deviation where there are several."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
