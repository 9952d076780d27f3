"""Several runs of one study as one: its methods need not have run in one sitting, or on one machine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from coterie.errors import BadInput
from coterie.measure.metrics import silo_scores
from coterie.measure.significance import compare
from coterie.runs.read import Run
from coterie.studies import study as studies

ALIKE = ("name", "data", "model", "train", "seeds", "compared")  # or scores of one cannot stand beside those of another


def differing(study: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What keeps runs of two studies from being drawn as one."""
    return [key for key in ALIKE if study.get(key) != other.get(key)]


def ordered(study: str, methods: Iterable[str]) -> list[str]:
    """Methods in the order of a built-in study, then as they come."""
    order = list(studies.read(study).get("methods", {})) if study in studies.built_in() else []
    return sorted(methods, key=lambda name: order.index(name) if name in order else len(order))


def joined(runs: Sequence[Run]) -> Run:
    """One run with the methods of all, in the order of the study; without a verdict, which is of one run."""
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    for run in runs:
        if keys := differing(first.study, run.study):
            raise BadInput(f"the runs differ in {keys[0]}; give runs that differ in methods alone, or --sweep KEY")
        if not run.finished:
            raise BadInput("one of the runs has not finished; several are drawn together when all have")
    names = [method for run in runs for method in run.methods]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"{twice[0]} is in more than one of the runs; give runs that differ in methods")
    names = ordered(first.name, names)
    scores = {name: run.methods[name] for name in names for run in runs if name in run.methods}
    measure, by_silo = silo_scores(scores, first.by)
    return replace(
        first,
        methods=scores,
        results=pd.concat([run.results for run in runs], ignore_index=True),
        traces={name: run.traces[name] for name in names for run in runs if name in run.traces},
        significance=compare(by_silo).assign(measure=measure),
        verdict=None,
        metric=first.by,
    )
