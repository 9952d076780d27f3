"""The predictions, for whoever will use the models: curves, calibration, errors, of all silos or of one."""

from collections.abc import Mapping
from html import escape

from coterie.measure.measures import MOST_CLASSES, measure_of
from coterie.measure.verdict_words import listed
from coterie.report.html import blocks, cell, note, plot, section, table
from coterie.report.predicted import Predicted, of_run
from coterie.report.predictions import calibration, curves, matrix, residuals, scatter
from coterie.report.theme import Ink, inks
from coterie.runs.read import Run

MOST_SILOS = 30  # to choose from
SMALL = 5  # classes whose confusion leaves room for another method's below it
USED = {
    "auroc": "", "auprc": "", "sensitivity": "", "specificity": "", "accuracy": "", "brier": "",
    "calibration_error": "", "calibration_error_raw": ", raw", "rmse": "", "mae": "", "r2": "",
}  # fmt: skip


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
    return _figures(found) + _grid(figures, "".join(_titled(title, body) for title, body in matrices.items()))


def _figures(found: Mapping[str, Predicted]) -> str:
    """The measures that people use, of these rows."""
    values = {method: each.measured() for method, each in found.items()}
    known = [key for key in USED if any(key in each for each in values.values())]
    rows = {
        method: "".join(cell(measure_of(key.removesuffix("_raw")).shown(each.get(key))) for key in known)
        for method, each in values.items()
    }
    return table(["method", *(measure_of(key.removesuffix("_raw")).title + USED[key] for key in known)], rows)


def _grid(figures: Mapping[str, str], last: str = "") -> str:
    shown = "".join(f"<div>{_titled(title, body)}</div>" for title, body in figures.items())
    return f"<div class='figures'>{shown}{f'<div>{last}</div>' if last else ''}</div>"


def _titled(title: str, body: str) -> str:
    return f"<h4>{escape(title)}</h4>{body}"
