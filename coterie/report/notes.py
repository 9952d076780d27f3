"""What must be said beside the scores: whose uploads did not count, and what a run gave away."""

from collections.abc import Mapping
from typing import Any


def notes(summary: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each method that has something to say."""
    return [line for method, scores in summary.items() for line in _of(method, scores)]


def _of(method: str, scores: Mapping[str, Any]) -> list[str]:
    lines = []
    rejected = scores.get("rejected") or []
    if rejected:
        by_silo: dict[str, list[Mapping[str, Any]]] = {}
        for each in rejected:
            by_silo.setdefault(each["silo"], []).append(each)
        told = [f"{silo} {len(them)}× ({_first(them)})" for silo, them in list(by_silo.items())[:3]]
        more = f" and {len(by_silo) - 3} more silo{'s' * (len(by_silo) > 4)}" if len(by_silo) > 3 else ""
        lines.append(f"{method}: {len(rejected)} upload{'s' * (len(rejected) > 1)} rejected: {', '.join(told)}{more}")
    if scores.get("kept"):
        told = [f"{each['silo']} ({_round(each['round'])})" for each in scores["kept"]]
        lines.append(f"{method}: silos that have not kept the model of the picked round: {', '.join(told)}")
    if "privacy" in scores:
        lines.append(f"{method}: {_private(scores['privacy'])}")
    return lines


def _round(round: int | None) -> str:
    return "no model" if round is None else f"that of round {round}"


def _private(told: Mapping[str, Any]) -> str:
    if not told["noise"]:
        return "changes are clipped but no noise is added, so there is no differential privacy"
    most = f"{told['uploads']} upload{'s' * (told['uploads'] > 1)}"
    return (
        f"ε = {told['epsilon']:.4g} at δ = {told['delta']:g} for all data of a silo, by its {most} "
        f"(clip {told['clip']:g}, noise {told['noise']:g}); declared sizes and reported measures are not covered"
    )


def _first(them: list[Mapping[str, Any]]) -> str:
    return f"first in round {them[0]['round']}: {them[0]['reason']}"
