"""What a summary says beyond scores: the verdict, in figures and in words, and which methods differ significantly."""

from collections.abc import Mapping, Sequence
from typing import Any

from pandas import DataFrame

from coterie.errors import BadInput
from coterie.measure import verdict_words
from coterie.measure.measures import Array
from coterie.measure.metrics import silo_scores
from coterie.measure.predictions import Predictions
from coterie.measure.significance import compare
from coterie.measure.verdict import judge


def judgement(
    methods: Mapping[str, Mapping[str, Any]],
    results: DataFrame,
    predictions: Predictions,
    traces: Mapping[str, Mapping[str, Array]],
    alone: str | None,
    sizes: Mapping[int, Mapping[str, int]],
    by: str,
    baselines: Sequence[str] = (),
    flattered: Sequence[str] = (),
    mixtures: Sequence[str] = (),
) -> dict[str, Any]:
    """The `verdict` and the `significance` of a summary."""
    costs = {name: float((each.get("bytes_up") or 0) + (each.get("bytes_down") or 0)) for name, each in methods.items()}
    verdict = judge(results, predictions, traces, alone, sizes, by, costs, baselines, flattered, mixtures)
    verdict |= {"refit": True} if any(each.get("refit_rounds") for each in methods.values()) else {}
    words = {
        "consortium": verdict_words.consortium(verdict),
        "silos": [verdict_words.silo(standing, verdict) for standing in verdict["silos"]],
    }
    try:
        measure, scores = silo_scores(methods, verdict["measure"])
        pairs = compare(scores).assign(measure=measure).to_dict("records")
    except BadInput:  # real silos come and go: two methods may have been measured on different ones
        pairs = []
    return {"verdict": {**verdict, "words": words}, "significance": pairs}
