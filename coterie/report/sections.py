"""The sections of the report: each a function from what a study found to HTML, empty when it has nothing to say."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from pandas import DataFrame

from coterie.measure.notes import notes
from coterie.measure.table import error_of, summary_cells
from coterie.report import figures
from coterie.report.figures import Array, Figure
from coterie.report.heat_map import collaboration
from coterie.report.theme import Ink, inks


@dataclass(frozen=True)
class Report:
    """All that the sections draw on."""

    summary: Mapping[str, Mapping[str, Any]]
    results: DataFrame
    traces: Mapping[str, Mapping[str, Array]]
    labels: DataFrame | None
    study: Mapping[str, Any]  # name, command, toml

    @property
    def inks(self) -> dict[str, Ink]:
        """A method's colour, the same in every section."""
        return inks(self.summary)

    @property
    def regression(self) -> bool:
        """Whether the study is scored by an error."""
        return error_of(self.summary) is not None


def scores(report: Report) -> str:
    """The table of methods × measures."""
    headings, rows = summary_cells(report.summary)
    head = "".join(f"<th>{escape(heading)}</th>" for heading in ["method", *headings])
    body = "".join(
        f"<tr><th scope='row'>{_dot(report, method)}{escape(method)}</th>"
        + "".join(_cell(cell.text, cell.best) for cell in cells)
        + "</tr>"
        for method, cells in rows.items()
    )
    error = error_of(report.summary)
    first = f"best {error}" if error else "BMTA, the best over rounds of the mean test accuracy over silos,"
    note = (
        f"{first} picks its round on test data; val-picked picks it on validation data. Weighted (by test size) and "
        "bottom decile (over silos) are at the best round. Round 0, before training, does not count."
    )
    table = f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    unit = "" if report.regression else "Accuracies in percent. "
    beside = "".join(f"<p class='note'>{escape(line)}</p>" for line in notes(report.summary))
    return section("Scores", f"<p class='note'>{unit}{note[0].upper()}{note[1:]}</p>{table}{beside}")


def curves(report: Report) -> str:
    """Accuracy over rounds."""
    seeds = report.results["seed"].nunique()
    band = f" The band spans the {seeds} seeds, lowest to highest." if seeds > 1 else ""
    drawn = plot(figures.accuracy_curves(report.results, report.inks))
    return section("Over the rounds", f"<p class='note'>The mean over silos on test data.{band}</p>{drawn}")


def distribution(report: Report) -> str:
    """Every silo's score, drawn and as a table."""
    methods = list(report.summary)
    silos = list(dict.fromkeys(silo for method in methods for silo in report.summary[method]["per_silo"]))
    head = "".join(f"<th>{escape(name)}</th>" for name in ["silo", *methods])
    body = "".join(
        f"<tr><th scope='row' title='{escape(silo)}'>{escape(silo)}</th>{_silo_cells(report, silo)}</tr>"
        for silo in silos
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    drawn = plot(figures.silo_distribution(report.summary, report.inks))
    return section(
        "Over the silos",
        f"<p class='note'>Each dot is a silo at its method's best round, the mean over seeds.</p>{drawn}"
        f"<details><summary>Every silo as a table</summary><div class='scroll tall'>{table}</div></details>",
    )


def who_learns_from_whom(report: Report) -> str:
    """The collaboration weights, one heat map a method that has them."""
    drawn = [
        f"<div><h3>{_dot(report, method)}{escape(method)}</h3>"
        + plot(collaboration(trace["collaboration"], [str(silo) for silo in trace["silos"]], _rounds(trace)))
        + "</div>"
        for method, trace in report.traces.items()
        if "collaboration" in trace
    ]
    if not drawn:
        return ""
    note = (
        "A row is a silo, a column the silo it learns from. Colours run to the largest weight between two different "
        "silos, so a silo's weight on itself may lie beyond them; point at a cell for its value."
    )
    return section("Who learns from whom", f"<p class='note'>{note}</p><div class='figures'>{''.join(drawn)}</div>")


def labels(report: Report) -> str:
    """What every silo's data holds."""
    if report.labels is None or report.labels.empty:
        return ""
    drawn = plot(figures.label_distribution(report.labels))
    return section("The data of the silos", f"<p class='note'>Samples of each label.</p>{drawn}")


def costs(report: Report) -> str:
    """Bytes that crossed the wire and seconds of training."""
    drawn = ""
    for title, keys in [
        ("Megabytes exchanged, all silos and rounds", {"bytes_up": "up", "bytes_down": "down"}),
        ("Seconds of training", {"train_seconds": "seconds"}),
    ]:
        if any(scores.get(key) is not None for scores in report.summary.values() for key in keys):
            drawn += f"<div><h3>{title}</h3>{plot(figures.costs(report.summary, report.inks, keys))}</div>"
    return section("What it cost", f"<div class='figures'>{drawn}</div>") if drawn else ""


def reproduce(report: Report) -> str:
    """The command and the study with every default written back."""
    command, toml = report.study.get("command"), report.study.get("toml")
    body = f"<pre>{escape(str(command))}</pre>" if command else ""
    if toml:
        body += f"<p>The study, with every default written back:</p><pre>{escape(str(toml))}</pre>"
    return section("How to reproduce", body) if body else ""


SECTIONS: list[Callable[[Report], str]] = [
    scores,
    curves,
    distribution,
    who_learns_from_whom,
    labels,
    costs,
    reproduce,
]


def section(title: str, body: str) -> str:
    """A titled block of the page; `body` is HTML already."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def plot(figure: Figure) -> str:
    """A figure as data that the page's script draws."""
    # In a script element only `<` could end it or open a comment.
    data = figure.to_json().replace("<", "\\u003c")
    height = int(figure.layout.height)
    return (
        f"<div class='figure'><div class='plot' style='height:{height}px'></div>"
        f"<script type='application/json'>{data}</script></div>"
    )


def _dot(report: Report, method: str) -> str:
    ink = report.inks.get(method)
    return f"<span class='dot' style='background:{ink.colour}'></span>" if ink else ""


def _cell(text: str, best: bool) -> str:
    return f"<td class='best'>{escape(text)}</td>" if best else f"<td>{escape(text)}</td>"


def _silo_cells(report: Report, silo: str) -> str:
    values = [scores["per_silo"].get(silo) for scores in report.summary.values()]
    texts = ["-" if v is None else f"{v:.4g}" if report.regression else f"{v:.2f}" for v in values]
    known = [v for v in values if v is not None]
    best = (min if report.regression else max)(known)
    best_text = texts[values.index(best)]
    return "".join(_cell(text, text == best_text) for text in texts)


def _rounds(trace: Mapping[str, Array]) -> list[int] | None:
    """The rounds after which a trace was kept, where it says so."""
    return [int(round) for round in trace["rounds"]] if "rounds" in trace else None
