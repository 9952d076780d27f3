"""How well the models do in each part of the test rows: a table for each column, of all silos or of one."""

from collections.abc import Mapping
from typing import Any

from coterie.measure.measures import Measure, measure_of
from coterie.measure.subgroups import FEWEST
from coterie.measure.verdict_words import listed
from coterie.report.html import blocks, cell, note, section, table
from coterie.report.in_use import MOST_SILOS
from coterie.report.predicted import shown_methods
from coterie.runs.read import Run

ALL = "All silos together"


def subgroups(run: Run) -> str:
    """The sections, empty where none were asked for."""
    measure = measure_of(run.by or "accuracy")
    return "".join(_section(run, column, levels, measure) for column, levels in run.subgroups.items())


def _section(run: Run, column: str, levels: Mapping[str, Any], measure: Measure) -> str:
    text = f"{measure.title} on test rows with its 95% interval, mean over seeds."
    silos = list(dict.fromkeys(silo for each in levels.values() for silo in each["silos"]))
    choices = {ALL: _table(levels, run, measure)}
    if 1 < len(silos) <= MOST_SILOS:
        for silo in silos:
            mine = {level: each["silos"][silo] for level, each in levels.items() if silo in each["silos"]}
            choices[silo] = _table(mine, run, measure)
    return section(f"Subgroups by {column}", note(text) + blocks("Silo", choices))


def _table(levels: Mapping[str, Any], run: Run, measure: Measure) -> str:
    methods = shown_methods(run)
    rows = {
        level: cell(f"{each['n']:,}") + "".join(cell(_shown(each["methods"].get(m), measure)) for m in methods)
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
