"""What must be said beside the scores: whose uploads did not count, and what a run gave away."""

from collections.abc import Mapping
from typing import Any


def notes(methods: Mapping[str, Mapping[str, Any]], privacy: Mapping[str, Any] | None = None) -> list[str]:
    """A line for each method that has something to say, and one for the `privacy` of all of them."""
    lines = _edges(methods) + [line for method, scores in methods.items() for line in _of(method, scores)]
    return lines + ([f"the run: {_together(privacy)}"] if privacy and len(methods) > 1 else [])


def _together(spent: Mapping[str, Any]) -> str:
    if spent["unprotected"]:
        names = ", ".join(spent["unprotected"])
        verb = "uploads" if len(spent["unprotected"]) == 1 else "upload"
        return f"no differential privacy in all (ε = ∞): what {names} {verb} is not noised"
    return (
        f"ε = {_number(spent['epsilon'])} at δ = {spent['delta']:g} for {_hidden(spent)} ({spent['silo']}), "
        "by its uploads of all methods and seeds"
    )


def _edges(methods: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Methods whose search took a rate at an end of what it tries."""
    alike = dict[tuple[str, str, float], list[str]]()
    for method, scores in methods.items():
        if edge := scores.get("rate_at_edge"):
            alike.setdefault((edge["end"], edge["optimizer"], edge["lr"]), []).append(method)
    return [
        f"{', '.join(names)}: of {optimizer} the search took the {end} rate that it tries, {lr:g}; whether a "
        f"{'larger' if end == 'largest' else 'smaller'} one would do better is not known"
        for (end, optimizer, lr), names in alike.items()
    ]


def _of(method: str, scores: Mapping[str, Any]) -> list[str]:
    lines = []
    rejected = scores.get("rejected") or []
    if rejected:
        by_silo: dict[str, list[Mapping[str, Any]]] = {}
        for each in rejected:
            by_silo.setdefault(each["silo"], []).append(each)
        firsts = [(silo, len(them), them[0]) for silo, them in list(by_silo.items())[:3]]
        named = [f"{silo} {n}× (first in round {first['round']}: {first['reason']})" for silo, n, first in firsts]
        more = f" and {len(by_silo) - 3} more silo{'s' * (len(by_silo) > 4)}" if len(by_silo) > 3 else ""
        lines.append(f"{method}: {len(rejected)} upload{'s' * (len(rejected) > 1)} rejected: {', '.join(named)}{more}")
    if scores.get("kept"):
        rounds = [(each["silo"], each["round"]) for each in scores["kept"]]
        named = [f"{silo} ({f'that of round {n}' if n is not None else 'no model'})" for silo, n in rounds]
        lines.append(f"{method}: silos that have not kept the model of the picked round: {', '.join(named)}")
    if "privacy" in scores:
        lines.append(f"{method}: {_private(scores['privacy'])}")
    if "secure" in scores:
        lines.append(
            f"{method}: [secure] {scores['secure']['level']}: the server learns {scores['secure']['server_learns']}"
        )
    return lines


def _private(spent: Mapping[str, Any]) -> str:
    if not spent["noise"]:
        what = "gradients" if spent.get("level") == "record" else "changes"
        return f"{what} are clipped but no noise is added, so there is no differential privacy"
    most = f"{spent['uploads']} upload{'s' * (spent['uploads'] > 1)}"
    if spent.get("in_search"):
        most += f", {spent['in_search']} of them in the search for its learning rate: give its train.lr to save them,"
    together = f", of {spent['silos_in_sum']} silos in a sum" if "silos_in_sum" in spent else ""
    return (
        f"ε = {_number(spent['epsilon'])} at δ = {spent['delta']:g} for {_hidden(spent)}, by its {most} "
        f"({_drawn(spent)}clip {spent['clip']:g}, noise {spent['noise']:.4g}{together}); "
        "declared sizes and reported measures are not covered"
    )


def _hidden(spent: Mapping[str, Any]) -> str:
    return "each record of a silo" if spent.get("level") == "record" else "all data of a silo"


def _drawn(spent: Mapping[str, Any]) -> str:
    """Of DP-SGD, how many steps there were."""
    return f"{spent['steps']} steps on batches of {spent['sampling']:.3g} of its rows, " if "steps" in spent else ""


def _number(epsilon: float | None) -> str:
    return "∞" if epsilon is None else f"{epsilon:.4g}"  # JSON has no infinity
