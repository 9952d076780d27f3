"""Several runs side by side: the scores of each method in each, and whether they differ over the silos they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from coterie import toml
from coterie.errors import BadInput
from coterie.measure.measures import Measure, measure_of, rounded
from coterie.measure.metrics import plain_measure, silo_scores
from coterie.measure.significance import ALPHA, holm, signed_rank
from coterie.report.table import judged_scores, main_score, with_spread
from coterie.runs.read import Run

UNCOMPARED = ("name", "about", "paper")  # of a study


@dataclass(frozen=True)
class Change:
    """One method in another run than the first: the mean over shared silos of the difference, and p after Holm."""

    method: str
    run: int
    silos: int
    difference: float
    p_holm: float


def changes(runs: Sequence[Run]) -> list[Change]:
    """Every later run against the first, paired over the silos that both have; Holm's correction is over them all."""
    found, p = list[tuple[str, int, int, float]](), list[float]()
    first, *others = (judged_scores(run.methods, run.by)[0] for run in runs)
    for i, scored in enumerate(others, 1):
        for method, own in scored.items():
            base = first.get(method, {})
            shared = [silo for silo in own if silo in base]
            if shared:
                pairs = [(own[silo], base[silo]) for silo in shared]
                difference = np.array([0.0 if a == b else a - b for a, b in pairs])  # of two infinite losses too
                found.append((method, i, len(shared), float(difference.mean())))
                p.append(signed_rank(difference))
    corrected = holm(np.array(p))
    return [Change(*each, float(q)) for each, q in zip(found, corrected, strict=True)]


def settings(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The study keys in which the runs differ, and what each run says; of methods only those that all runs have."""
    flat = [toml.flat({key: each for key, each in run.study.items() if key not in UNCOMPARED}) for run in runs]
    everywhere = [name for name in runs[0].methods if all(name in run.methods for run in runs)]
    all_keys = dict.fromkeys(key for each in flat for key in each)
    keys = [key for key in all_keys if not key.startswith("methods.") or key.split(".")[1] in everywhere]
    shown = {key: [toml.value(each[key]) if key in each else "-" for each in flat] for key in keys}
    return {key: values for key, values in shown.items() if len(set(values)) > 1}


def comparison(runs: Mapping[str, Run]) -> Table:
    """The table; a column a run, named by its folder."""
    all_runs = list(runs.values())
    judged = list(dict.fromkeys(silo_scores(run.methods, run.by)[0] for run in all_runs))
    if len(judged) > 1:
        named = " and by ".join(judged)
        raise BadInput(f"these runs are judged by {named}; compare like with like, or give --metric that all have")
    measure = measure_of(judged[0])
    found = {(each.method, each.run): each for each in changes(all_runs)}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, caption_justify="left")
    table.add_column("method", overflow="fold")
    key, title = main_score(
        {f"{i}/{name}": each for i, run in enumerate(all_runs) for name, each in run.methods.items()}
    )
    if judged[0] != plain_measure(all_runs[0].methods):
        key, title = "", judged_scores(all_runs[0].methods, judged[0])[1]
    for i, name in enumerate(runs):
        table.add_column(Text(name), justify="right")
        if i:
            table.add_column("change", justify="right")
            table.add_column("p", justify="right")
    for method in dict.fromkeys(method for run in all_runs for method in run.methods):
        cells = [Text(method)]
        for i, run in enumerate(all_runs):
            scores = run.methods.get(method, {})
            cells.append(Text(with_spread(key, scores) if key else _mean(scores, measure, judged[0])))
            if i:
                cells += _change(found.get((method, i)), measure)
        table.add_row(*cells)
    table.caption = (
        f"{title[0].upper()}{title[1:]}. Change and p: against the first run, over the silos of the same name "
        "(Wilcoxon's signed-rank test, Holm's correction over the table); * where p < 0.05."
    )
    if any(key == "seeds" or key.startswith("data.") for key in settings(all_runs)):
        table.caption += " The runs have different data or seeds: a silo of one may not be the silo of the other."
    return table


def _mean(scores: Mapping[str, Any], measure: Measure, name: str) -> str:
    value = scores.get("measures", {}).get(name, {}).get("test")
    return "-" if value is None else f"{100 * value:.2f}" if measure.percent else rounded(value, 4)


def _change(change: Change | None, measure: Measure) -> list[Text]:
    if change is None:
        return [Text("-"), Text("-")]
    sure = change.p_holm < ALPHA
    better = (change.difference > 0) == measure.higher
    style = ("bold green" if better else "bold red") if sure else ""
    text = f"{change.difference:+.2f}" if measure.percent else f"{change.difference:+.3g}"
    return [Text(text + ("*" if sure else " "), style), Text(f"{change.p_holm:.2g}")]
