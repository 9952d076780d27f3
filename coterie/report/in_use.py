"""The predictions, for whoever will use the models: curves, calibration, errors, subgroups, of all silos or of one."""

from collections.abc import Mapping
from typing import Any

from coterie.measure.measures import MOST_CLASSES, Measure, measure_of
from coterie.measure.subgroups import FEWEST
from coterie.measure.verdict_words import listed
from coterie.report.evidence import headed
from coterie.report.html import blocks, cells, note, plot, section, table, titled
from coterie.report.predicted import Predicted, of_run, shown_methods
from coterie.report.predictions import calibration, curves, matrix, residuals, scatter
from coterie.report.theme import Ink, inks
from coterie.runs.read import Run

MOST_SILOS = 30  # to choose from
SMALL = 5  # classes whose confusion leaves room for another method's below it
USED = (
    "auroc", "auprc", "sensitivity", "specificity", "accuracy", "brier", "calibration_error", "calibration_error_raw",
    "rmse", "mae", "r2",
)  # fmt: skip


def predictions(run: Run) -> str:
    """What the saved models predict for the test rows: of all silos together, and of few silos of each."""
    found = of_run(run)
    if not found:
        return ""
    first = next(iter(found.values()))
    silos = list(dict.fromkeys(first.silos))
    choices = {f"All silos together ({len(first.labels):,} rows)": found}
    if 1 < len(silos) <= MOST_SILOS:
        choices |= {silo: {method: each.of(silo) for method, each in found.items()} for silo in silos}
    shown = {name: _drawn(each, inks(run.methods)) for name, each in choices.items()}
    return section("What the models predict", note(_about(found)) + blocks("Silo", shown))


def subgroups(run: Run) -> str:
    """How well the models do in each part of the test rows: a table for each column, of all silos or of one."""
    measure = measure_of(run.by or "accuracy")
    return "".join(_of_column(run, column, levels, measure) for column, levels in run.subgroups.items())


def _about(methods: Mapping[str, Predicted]) -> str:
    text = "Test rows and the models that were judged: those of the picked round, first seed."
    found = next(iter(methods.values()))
    if not found.names:
        return text
    which = "the likeliest class"
    if len(found.names) == 2:
        which = "the positive class"
        text += f" The positive class is {found.names[1]}; each silo's threshold is set on its validation rows."
    elif len(found.names) <= MOST_CLASSES:
        lines = listed([f"{'solid' if i == 0 else 'dotted'}: {name}" for i, name in enumerate(methods)])
        text += f" Curves are of one class against the rest; {lines}. What is predicted is the most probable class."
    text += f" Reliability is that of the probability of {which}: on the diagonal it comes true."
    text += " Raw, and dotted there: before tempering." if found.raw is not None else ""
    return f"{text} Confusion: a row is a true class, a column what was predicted."


def _drawn(found: Mapping[str, Predicted], colours: Mapping[str, Ink]) -> str:
    found = {method: each for method, each in found.items() if len(each.labels)}
    if not found:
        return note("No test rows.")
    classes = len(next(iter(found.values())).names)
    if not classes:
        figures = {
            "Predicted against true": plot(scatter(found, colours)),
            "Residuals": plot(residuals(found, colours)),
        }
        return _figures(found) + _grid(figures)
    figures = {}
    if classes <= MOST_CLASSES:
        roc, recall = curves(found, colours)
        figures = {"ROC": plot(roc), "Precision and recall": plot(recall)}
    figures["Reliability"] = plot(calibration(found, colours))
    matrices = {f"Confusion, {method}": matrix(each) for method, each in found.items()}
    if classes > SMALL:
        return _figures(found) + _grid({**figures, **matrices})
    return _figures(found) + _grid(figures, "".join(titled(title, body) for title, body in matrices.items()))


def _figures(found: Mapping[str, Predicted]) -> str:
    """The measures that people use, of these rows."""
    values = {method: each.measured() for method, each in found.items()}
    known = {key: headed(key) for key in USED if any(key in each for each in values.values())}
    rows = {
        method: cells(*(measure.shown(each.get(key)) for key, (_, measure) in known.items()))
        for method, each in values.items()
    }
    return table(["method", *(heading for heading, _ in known.values())], rows)


def _grid(figures: Mapping[str, str], last: str = "") -> str:
    shown = "".join(f"<div>{titled(title, body)}</div>" for title, body in figures.items())
    return f"<div class='figures'>{shown}{f'<div>{last}</div>' if last else ''}</div>"


def _of_column(run: Run, column: str, levels: Mapping[str, Any], measure: Measure) -> str:
    text = f"{measure.title} on test rows with its 95% interval, mean over seeds."
    silos = list(dict.fromkeys(silo for each in levels.values() for silo in each["silos"]))
    choices = {"All silos together": _by_level(levels, run, measure)}
    if 1 < len(silos) <= MOST_SILOS:
        for silo in silos:
            mine = {level: each["silos"][silo] for level, each in levels.items() if silo in each["silos"]}
            choices[silo] = _by_level(mine, run, measure)
    return section(f"Subgroups by {column}", note(text) + blocks("Silo", choices))


def _by_level(levels: Mapping[str, Any], run: Run, measure: Measure) -> str:
    methods = shown_methods(run)
    rows = {
        level: cells(f"{each['n']:,}", *(_shown(each["methods"].get(method), measure) for method in methods))
        for level, each in levels.items()
        if each["methods"] is not None
    }
    small = [f"{level} ({each['n']})" for level, each in levels.items() if each["methods"] is None]
    left_out = note(f"Not measured, with fewer than {FEWEST} test rows: {listed(small)}.") if small else ""
    return (table(["level", "test rows", *methods], rows) if rows else "") + left_out


def _shown(found: Mapping[str, Any] | None, measure: Measure) -> str:
    if found is None:
        return "–"
    within = "" if found["low"] is None else f" [{measure.shown(found['low'])}, {measure.shown(found['high'])}]"
    return measure.shown(found["value"]) + within
