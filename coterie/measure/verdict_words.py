"""The verdict in plain words."""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.measure.metrics import lower_better
from coterie.measure.significance import ALPHA

Verdict = Mapping[str, Any]
OUTCOMES = {
    "better": "better off",
    "worse": "worse off",
    "same": "as well off alone",
    "unclear": "too close to call",
}
DIVERGED = {
    "better": "its model diverges alone, and not in the federation",
    "worse": "its model diverges in the federation, and not alone",
    "unclear": "its model diverges, alone and in the federation",
}
FEW = 8  # silos that are told of one by one in a terminal


def consortium(verdict: Verdict) -> list[str]:
    """Which method to take and how sure that is; then how many silos are better off with it."""
    return [_which(verdict), _whether(verdict)]


def compact(verdict: Verdict) -> list[str]:
    """What fits at the end of a terminal: the consortium, and of many silos only those whose outcome is sure."""
    told = ranked(verdict["silos"])
    if len(told) <= FEW:
        return [*consortium(verdict), *([f"{'; '.join(silo(each, verdict) for each in told)}."] if told else [])]
    lines = consortium(verdict)
    for outcome, order in (("better", told), ("worse", told[::-1])):
        sure = [silo(each, verdict) for each in order if each["outcome"] == outcome]
        if sure:
            more = f"; and {len(sure) - FEW} more" if len(sure) > FEW else ""
            lines.append(f"{'; '.join(sure[:FEW])}{more}.")
    return lines


def ranked(standings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The silos that gain most first; those whose models diverged last."""
    return sorted(standings, key=lambda each: (each["gain"] is None, -(each["gain"] or 0)))


def silo(standing: Mapping[str, Any], verdict: Verdict) -> str:
    """One silo: what it gains and from whom."""
    name, gain = standing["silo"], standing["gain"]
    if gain is None:
        return f"{name}: {DIVERGED[standing['outcome']]}"
    spread = amount((standing["gain_high"] - standing["gain_low"]) / 2, verdict)
    size = f"{amount(abs(gain), verdict)} ± {spread}{unit(verdict)}"
    if standing["outcome"] == "better":
        peers = f", mostly from {listed(standing['peers'])}" if standing["peers"] else ""
        return f"{name} gains {size}{peers}"
    if standing["outcome"] == "worse":
        return f"{name} loses {size} and is better off alone"
    signed = f"{'+' if gain >= 0 else '−'}{size}"
    if standing["outcome"] == "same":
        return f"{name} would do as well alone ({signed})"
    return f"{name}: too close to call ({signed})"


def _which(verdict: Verdict) -> str:
    chosen, measure = verdict["chosen"], _measure(verdict)
    if chosen is None:
        return (
            "No method is chosen: there are no validation data, and a choice on test data would flatter itself. "
            "Set some of each silo's data aside for validation."
        )
    scores = verdict["methods"][chosen]
    alone = ": each silo on its own" if chosen == verdict["alone"] else ""
    if len(verdict["methods"]) == 1:
        return f"{chosen} is the only method: {score(scores['test'], verdict)} {measure} on test data."
    if verdict["sure"] is None:
        return (
            f"Take {chosen}{alone}: it alone has a model in every silo that did not diverge; on test data it has "
            f"{score(scores['test'], verdict)} {measure}."
        )
    text = (
        f"Take {chosen}{alone}. It has the best mean {measure} on validation data "
        f"({score(scores['validation'], verdict)}), and keeps it in {100 * verdict['sure']:.0f}% of redraws of the "
        f"silos; on test data it has {score(scores['test'], verdict)}."
    )
    equals = verdict["equals"]
    if not equals:
        return f"{text} Every other method is significantly behind."
    shown = listed(equals if len(equals) <= 4 else [*equals[:3], f"{len(equals) - 3} more"])
    return f"{text} As good, as far as these silos can tell: {shown}."


def _whether(verdict: Verdict) -> str:
    alone, judged = verdict["alone"], verdict["judged"]
    if alone is None:
        return "Whether a silo is better off than alone cannot be told: `separate` is not in the study. Add it."
    if judged is None:
        federated = {name: scores for name, scores in verdict["methods"].items() if "gain" in scores}
        if not federated:
            return "There is no federated method in the study to be better off with."
        most = max(federated, key=lambda name: federated[name]["better"])
        return (
            f"Beside training alone, from {federated[most]['better']} silos better off with {most} to "
            f"{min(each['better'] for each in federated.values())} with the least helpful method."
        )
    scores, silos = verdict["methods"][judged], verdict["silos"]
    gain = f"{amount(abs(scores['gain']), verdict)} ± {amount((scores['gain_high'] - scores['gain_low']) / 2, verdict)}"
    sure = "unlikely to be chance" if scores["p"] < ALPHA else "may be chance"
    mean = (
        f"With {judged} the silos {'gain' if scores['gain'] >= 0 else 'lose'} {gain}{unit(verdict)} in the mean over "
        f"training alone ({sure}: p = {scores['p']:.2g} over {len(silos)} silo{'s' * (len(silos) != 1)})."
    )
    counts = [f"{scores[outcome]} {words}" for outcome, words in OUTCOMES.items() if scores[outcome]]
    least, most = (extreme(each["samples"] for each in silos) for extreme in (min, max))
    tested = str(most) if least == most else f"{least} to {most}"
    few = f", with {tested} test samples each" if scores["unclear"] else ""
    return f"{mean} One by one: {listed(counts)}{few}."


def score(value: float | None, verdict: Verdict) -> str:
    """A score with its unit."""
    if value is None:
        return "∞"
    return f"{value:.4g}" if lower_better(verdict["measure"]) else f"{value:.1f}%"


def amount(value: float, verdict: Verdict) -> str:
    """A difference of scores."""
    return f"{value:.3g}" if lower_better(verdict["measure"]) else f"{value:.1f}"


def unit(verdict: Verdict) -> str:
    """What differences are counted in."""
    return "" if lower_better(verdict["measure"]) else " points"


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _measure(verdict: Verdict) -> str:
    return str(verdict["measure"])
