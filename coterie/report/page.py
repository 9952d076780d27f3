"""The report of a study: one HTML file that needs nothing else and opens offline."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coterie import __version__
from coterie.errors import BadInput
from coterie.measure.table import error_of
from coterie.report.figures import Array, plotly_objects
from coterie.report.sections import SECTIONS, Report
from coterie.report.theme import CSS, JS

# The browser itself refuses to load anything from outside, whatever a name in the data might contain.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


def render(
    summary: Mapping[str, Mapping[str, Any]],
    results: DataFrame,
    traces: Mapping[str, Mapping[str, Array]],
    labels: DataFrame | None,
    study: Mapping[str, Any],
    out: Path,
) -> None:
    """Write the report to `out`; `study` holds its `name`, the `command` that ran it and the resolved `toml`."""
    if not summary:
        raise BadInput("the report needs the results of at least one method")
    report = Report(summary, results, traces, labels, study)
    page = _page(report)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")


def in_words(report: Report) -> str:
    """The outcome in a paragraph: the best method and its lead over training alone."""
    error = error_of(report.summary)
    key, unit, better = (f"best_{error}", "", min) if error else ("bmta", "%", max)
    score = {method: float(scores[key]) for method, scores in report.summary.items() if key in scores}

    def say(value: float) -> str:
        return f"{value:.4g}" if report.regression else f"{value:.2f}"

    best = better(score, key=lambda method: score[method])
    scores = report.summary[best]
    silos, seeds = len(scores["per_silo"]), len(scores["per_seed"])
    measure = f"lowest mean test {error}" if error else "best mean test accuracy"
    when = f"at round {scores['best_round']}" if seeds == 1 else f"(mean of {seeds} seeds)"
    words = f"{best} has the {measure} over {silos} silo{'s' * (silos != 1)}: {say(score[best])}{unit} {when}."
    if "separate" not in score or len(score) == 1:
        return words
    if say(score[best]) == say(score["separate"]):
        return f"{words} No method does better than each silo training alone (separate)."
    lead = say(abs(score[best] - score["separate"]))
    points = f"{lead} less than" if report.regression else f"{lead} points more than"
    return f"{words} That is {points} each silo training alone (separate, {say(score['separate'])}{unit})."


def _page(report: Report) -> str:
    plotly_objects()
    from plotly.offline import get_plotlyjs

    name = escape(str(report.study.get("name", "Study")))
    body = "\n".join(text for text in (make(report) for make in SECTIONS) if text)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{name} · Coterie</title>
<style>{CSS}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<main>
<header>
<p class="kicker">Coterie study</p>
<h1>{name}</h1>
<p class="lead">{escape(in_words(report))}</p>
<noscript><p class="note">The figures need JavaScript; the tables do not.</p></noscript>
</header>
{body}
<footer>Written by Coterie {escape(__version__)}. This file holds everything it shows and loads nothing.</footer>
</main>
<script>{JS}</script>
</body>
</html>
"""
