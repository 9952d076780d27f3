"""The summary of a study as a table: methods × measures, the best of each score marked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from coterie.data.own.agree import Difference
from coterie.data.own.remarks import listed
from coterie.errors import LONGEST, plain
from coterie.measure.measures import measure_of, rounded
from coterie.measure.metrics import ERRORS, lower_better, plain_measure, silo_scores
from coterie.measure.significance import beside
from coterie.measure.verdict_words import Verdict

Scores = Mapping[str, Mapping[str, Any]]  # by method, as a summary has them
MARK = "*"  # so that the best shows without colour
ABOVE, BELOW = "↑", "↓"

ACCURACY = {
    "val_picked": "val-picked",
    "last": "last",
    "bmta": "BMTA",
    "published": "paper",
    "difference": "ours - paper",
    "bmta_cloud": "cloud BMTA",
    "last_cloud": "cloud last",
    "published_cloud": "paper cloud",
    "best_round": "best round",
    "weighted": "weighted",
    "bottom_decile": "bottom decile",
    "published_decile": "paper decile",
    "unseen": "unseen",
    "within_group": "within group",
    "within_group_least": "least",
}
ERROR = {  # of regression, whose error is rmse or loss
    "val_picked_{}": "val-picked",
    "last_{}": "last {}",
    "best_{}": "best {}",
    "best_{}_cloud": "cloud best",
    "last_{}_cloud": "cloud last",
    "best_round": "best round",
    "weighted_{}": "weighted",
    "bottom_decile_{}": "bottom decile",
    "unseen_{}": "unseen",
}
COSTS = {"bytes_up": "MB up", "bytes_down": "MB down", "train_seconds": "seconds"}
UNSCORED = {"best_round", "published", "difference", "published_cloud", "published_decile", *COSTS}
WHERE_KNOWN = {
    "published", "difference", "published_cloud", "published_decile", "bmta_cloud", "last_cloud", "unseen",
    "within_group", "within_group_least", "val_picked", *COSTS,
    *(f.format(e) for e in ERRORS for f in ("best_{}_cloud", "last_{}_cloud", "unseen_{}", "val_picked_{}")),
}  # fmt: skip
JUDGED = "judged"  # the key of the verdict's measure
ON_TEST = {"bmta", "bmta_cloud", "best_round", "weighted", "bottom_decile"} | {
    key.format(error) for error in ERRORS for key in ("best_{}", "best_{}_cloud", "weighted_{}", "bottom_decile_{}")
}  # whose round test data pick
SPARE = ("weighted", "best round", "seconds", "MB down", "MB up")  # left out of a narrow terminal, in this order


@dataclass(frozen=True)
class Cell:
    """One entry as text, and whether it is the best of its column."""

    text: str
    best: bool = False


def error_of(summary: Scores) -> str | None:
    """The error that a study of regression is scored by; None: it is scored by accuracy."""
    plain = plain_measure(summary)
    return None if plain == "accuracy" else plain


def main_score(summary: Scores) -> tuple[str, str]:
    """The key of the score that methods are compared by, and what it is called: that of the picked round."""
    error = error_of(summary)
    end, what = ("", "test accuracy, %") if error is None else (f"_{error}", f"test {error}")
    if _known(f"val_picked{end}", summary):
        return f"val_picked{end}", f"val-picked {what}"
    return f"last{end}", f"last {what}"


def judged_scores(summary: Scores, by: str | None) -> tuple[dict[str, dict[str, float]], str, bool]:
    """By method every silo's test score at the picked round, what it is called, and whether less is better."""
    name, found = silo_scores(summary, by)
    measure = measure_of(name)
    title = name if name == "loss" else measure.title
    return found, f"test {title}{', %' * measure.percent}", not measure.higher


def method_scores(summary: Scores, by: str | None) -> tuple[dict[str, float | None], dict[str, float | None], str]:
    """Each method's score and its standard deviation over seeds, and what they are called.

    Of published figures it is the score that they are of; else by the measure asked for.
    """
    key, title = compared_score(summary)
    if key == main_score(summary)[0] and by is not None and silo_scores(summary, by)[0] != plain_measure(summary):
        silos, title, _ = judged_scores(summary, by)
        means = {method: sum(each.values()) / len(each) if each else None for method, each in silos.items()}
        return means, dict.fromkeys(summary), title
    values = {method: scores.get(key) for method, scores in summary.items()}
    return values, {method: scores.get(f"{key}_std") for method, scores in summary.items()}, title


def compared_score(summary: Scores) -> tuple[str, str]:
    """The key of the score that published figures are of, and what it is called; the main one where there are none."""
    if not _known("published", summary):
        return main_score(summary)
    other = _compared(summary) or "bmta"
    return other, f"{ACCURACY[other]}, %"


def _known(key: str, summary: Scores) -> bool:
    return any(scores.get(key) is not None for scores in summary.values())


def _compared(summary: Scores) -> str | None:
    return next((scores["compared"] for scores in summary.values() if "compared" in scores), None)


def is_error(key: str) -> bool:
    """Whether a key of the summary is an error, of which less is more."""
    return any(error in key.split("_") for error in ERRORS)


def summary_cells(
    summary: Scores, verdict: Verdict | None = None, own: bool = False
) -> tuple[list[str], dict[str, list[Cell]]]:
    """The headings and, per method in study order, the cells under them.

    First is what the verdict goes by, at the picked round. Of `own` data no score is shown whose round test data pick.
    """
    columns = _columns(summary, verdict, own)
    rows: dict[str, list[Cell]] = {method: [] for method in summary}
    for key in columns:
        if key == JUDGED and verdict is not None:
            for method, cell in _judged(summary, verdict).items():
                rows[method].append(cell)
            continue
        values = {method: scores.get(key) for method, scores in summary.items()}
        for method, cell in marked(values, partial(_text, key), is_error(key)).items():
            rows[method].append(Cell(with_spread(key, summary[method]), cell.best and key not in UNSCORED))
    return list(columns.values()), rows


def with_spread(key: str, scores: Mapping[str, Any]) -> str:
    """A method's score, and how far it spreads over seeds."""
    spread = scores.get(f"{key}_std")
    return _text(key, scores.get(key)) + ("" if spread is None else f"±{_text(key, spread)}")


def marked(
    values: Mapping[str, float | None], text: Callable[[float | None], str], less_is_better: bool
) -> dict[str, Cell]:
    """Values as texts, the best of several marked: as printed, for of two equal figures one marked would puzzle."""
    known = [value for value in values.values() if value is not None]
    best = text((min if less_is_better else max)(known)) if len(known) > 1 else None
    return {name: Cell(text(value), text(value) == best) for name, value in values.items()}


def _columns(summary: Scores, verdict: Verdict | None, own: bool) -> dict[str, str]:
    """Every key of the summary that has a column, and its heading."""
    error = error_of(summary)
    scored = ACCURACY if error is None else {key.format(error): text.format(error) for key, text in ERROR.items()}
    columns = {
        key: heading
        for key, heading in {**scored, **COSTS}.items()
        if (key not in WHERE_KNOWN or _known(key, summary)) and not (own and key in ON_TEST)
    }
    if verdict is None:
        return columns
    main, plain = main_score(summary)[0], error or "accuracy"
    if verdict["measure"] == plain:
        first = {main: verdict["title"]}
    else:
        first = {JUDGED: verdict["title"], main: plain, main.replace("val_picked", "last"): f"last {plain}"}
    return first | {key: heading for key, heading in columns.items() if key not in first}


def _judged(summary: Scores, verdict: Verdict) -> dict[str, Cell]:
    """Each method by the measure of the verdict."""
    measure = measure_of(verdict["measure"])
    scale = 100 if measure.percent else 1
    values = {method: verdict["methods"].get(method, {}).get("test") for method in summary}
    scaled = {method: None if value is None else value / scale for method, value in values.items()}
    return marked(scaled, measure.shown, not measure.higher)


def summary_table(
    summary: Scores,
    width: int = 100,
    pairs: Sequence[Mapping[str, Any]] = (),
    reference: str | None = None,
    verdict: Verdict | None = None,
    own: bool = False,
) -> Table:
    """The summary for a terminal of so many columns; `pairs` show which methods surely differ from the reference."""
    headings, rows = summary_cells(summary, verdict, own)
    measure = pairs[0].get("measure", plain_measure(summary)) if pairs else None
    found = beside(pairs, reference, lower_better(measure)) if measure and reference is not None else {}
    columns = list(_columns(summary, verdict, own))
    place = columns.index(main_score(summary)[0] if measure in (None, plain_measure(summary)) else JUDGED)
    for method, way in found.items():
        before = rows[method][place]
        rows[method][place] = replace(before, text=before.text + (ABOVE if way > 0 else BELOW))
    left_out = list[str]()
    needed = {h: 1 + _width(h, [cells[i].text + MARK for cells in rows.values()]) for i, h in enumerate(headings)}
    names = min(16, max(len(method) for method in ["method", *rows]))
    spare = dict.fromkeys([*SPARE, *headings[:0:-1]])  # the first stays at every width
    for heading in spare:
        if names + sum(needed.values()) <= width:
            break
        if needed.pop(heading, None):
            left_out.append(heading)
    other = _compared(summary)
    ours = f" Ours - paper: of {ACCURACY[other]}, which the paper reports." if other else ""
    sure = f" {ABOVE}{BELOW} significantly better or worse than {reference} over the silos." if found else ""
    cloud = (
        " cloud: of the model that the server keeps for a silo."
        if any("cloud" in heading for heading in needed)
        else ""
    )
    more = f" In the report: {', '.join(left_out)}." if left_out else ""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        show_edge=False,
        caption=f"{MARK} best of its column. {_rounds(summary, verdict, own)}{ours}{cloud}{sure}{more}",
        caption_justify="left",
    )
    table.add_column("method", overflow="fold", vertical="bottom", min_width=names)
    for heading in needed:
        table.add_column(_broken(heading), justify="right", no_wrap=True, vertical="bottom")
    for method, cells in rows.items():
        shown = [cell for heading, cell in zip(headings, cells, strict=True) if heading in needed]
        table.add_row(
            Text(method), *(Text(c.text + MARK, "bold green") if c.best else Text(c.text + " ") for c in shown)
        )
    return table


def _rounds(summary: Scores, verdict: Verdict | None, own: bool) -> str:
    """Which rounds the scores are of."""
    error, last = error_of(summary), main_score(summary)[0].startswith("last")
    which = "the round that validation data pick, whose models are saved."
    if last:
        which = "without validation data the last round is judged and its models are saved."
    name = "last" if last else "val-picked"
    if verdict is not None:
        name, which = verdict["title"], f"the mean over silos on test data{'; ' if last else ' at '}{which}"
    best = "" if own else f" {'BMTA' if error is None else f'best {error}'} picks its round on test data, as papers do."
    return f"{name}: {which}{best}"


def differences_table(differences: Sequence[Difference]) -> Table:
    """How the tables of own silos differ, column by column; silos that differ alike share a line."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for heading in ("column", "silo", "what differs"):
        table.add_column(heading, overflow="fold")
    alike: dict[tuple[bool, str, str], list[str]] = {}
    for each in differences:
        alike.setdefault((not each.stops, each.column, each.what), []).append(each.silo)
    for (fine, column, what), silos in sorted(alike.items(), key=lambda line: line[0][0]):
        style = "" if fine else "bold red"
        table.add_row(*(Text(plain(text, LONGEST), style) for text in (column, listed(silos), what)))
    return table


def _broken(heading: str) -> str:
    """A heading over several lines."""
    return heading.replace(" ", "\n").replace("-", "-\n")


def _width(heading: str, texts: list[str]) -> int:
    return max(len(line) for text in (_broken(heading), *texts) for line in text.splitlines())


def _text(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key == "best_round":
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    if key in COSTS:
        amount = value if key == "train_seconds" else value / 1e6
        return f"{amount:.2g}" if amount < 1 else f"{amount:,.1f}" if amount < 1000 else f"{amount:,.0f}"
    return rounded(value, 4) if is_error(key) else f"{value:.2f}"
