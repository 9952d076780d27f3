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
    return lines


def _first(them: list[Mapping[str, Any]]) -> str:
    return f"first in round {them[0]['round']}: {them[0]['reason']}"
