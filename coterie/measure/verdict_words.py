"""The verdict in plain words."""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.measure.measures import measure_of
from coterie.measure.significance import ALPHA

Verdict = Mapping[str, Any]
OUTCOMES = {
    "better": "better off",
    "worse": "worse off",
    "equivalent": "as well off alone",
    "undecided": "undecided",
}
GUESS = {"majority": "always predicting the majority class", "median": "always predicting the median"}
DIVERGED = {
    "better": "its model diverges alone, and not in the federation",
    "worse": "its model diverges in the federation, and not alone",
    "undecided": "its model diverges, alone and in the federation",
}
REFIT = (
    "The saved models were trained again with the test rows, which are the newest: so in use they are about as old as "
    "when they were tested, and should do about as well on what follows, if it changes no faster."
)
FEW = 8  # silos that are named one by one in a terminal


def consortium(verdict: Verdict) -> list[str]:
    """Which method to take and how sure that is; then how many silos are better off with it."""
    refit = [REFIT] if verdict.get("refit") else []
    return [_which(verdict), _whether(verdict), *_today(verdict), *_plain_ahead(verdict), *refit]


def compact(verdict: Verdict) -> list[str]:
    """What fits at the end of a terminal: the consortium, and of many silos only those whose outcome is sure."""
    silos = ranked(verdict["silos"])
    if len(silos) <= FEW:
        return [*consortium(verdict), *([f"{'; '.join(silo(each, verdict) for each in silos)}."] if silos else [])]
    lines = consortium(verdict)
    for outcome, order in (("better", silos), ("worse", silos[::-1])):
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
    name, gain = _called(standing["silo"]), standing["gain"]
    if gain is None:
        return f"{name}: {DIVERGED[standing['outcome']]}"
    size = f"{amount(abs(gain), verdict)}{unit(verdict)}"
    within = span(standing["low"], standing["high"], verdict)
    by = f"{signed(gain, verdict)}{unit(verdict)}{within}"
    if standing["outcome"] == "better":
        peers = f", mostly from {listed(standing['peers'])}" if standing["peers"] else ""
        return f"{name} gains {size}{within}{peers}"
    if standing["outcome"] == "worse":
        return f"{name} loses {size}{within} and is better off alone"
    if standing["outcome"] == "equivalent":
        return f"{name} would do as well alone ({by})"
    more = f"; about {standing['needs']:,} more test rows would decide" if standing.get("needs") else ""
    if standing["low"] is not None and standing["high"] is not None and standing["low"] * standing["high"] > 0:
        more = f"; of {len(verdict['silos'])} silos one may look so by chance"  # what p_adjusted is for
    return f"{name}: undecided ({by}, {standing['n']:,} test rows{more})"


def _called(silo: str) -> str:
    return f"silo {silo}" if silo.isdecimal() else silo


def stays(verdict: Verdict) -> str | None:
    """The plain model to stay with: on validation rows it is ahead of every federated one, and test rows do not differ.

    Test rows choose nothing; where they clearly contradict, no advice is given.
    """
    today = verdict.get("baseline")
    if today is None or verdict["chosen"] is None or not today["beats"] or (today.get("low") or 0.0) > 0:
        return None
    return str(today["name"])


def _which(verdict: Verdict) -> str:
    chosen, best, title = verdict["chosen"], verdict["best"], _title(verdict)
    if chosen is None and verdict.get("guess"):
        return (
            f"No method is chosen: on validation rows none is shown to be better than {GUESS[verdict['guess']]}. "
            "Check the label and the columns, or add rows."
        )
    if chosen is None:
        return (
            "No method is chosen: there are no validation data, and a choice on test data would flatter itself. "
            "Set some of each silo's data aside for validation."
        )
    scores = verdict["methods"][chosen]
    own, tested = score(scores["validation"], verdict), f"on test data it has {score(scores['test'], verdict)}"
    if len(verdict["methods"]) == 1:
        return f"{chosen} is the only method: {score(scores['test'], verdict)} {title} on test data."
    first = f"Take {chosen}"
    if (plain := stays(verdict)) is not None:
        today = score(verdict["baseline"]["validation"], verdict)
        first = (
            f"Stay with {plain} on each silo alone for now: on validation data no method compared here is as good "
            f"({today} against {own}). Of these methods, take {chosen}"
        )
    first += ": each silo on its own" if chosen == verdict["alone"] else ""
    if len(verdict["ranked"]) == 1 and not verdict.get("flattered"):
        return f"{first}: it alone has a model in every silo that did not diverge; {tested} {title}."
    if chosen == best:
        extreme = "highest" if verdict["higher_better"] else "lowest"
        text = f"{first}. It has the {extreme} mean {title} on validation data ({own}); {tested}."
    else:
        highest = score(verdict["methods"][best]["validation"], verdict)
        beside = f"level with that of {best}" if own == highest else f"not clearly behind the best ({best}, {highest})"
        text = f"{first}. Its mean {title} on validation data ({own}) is {beside}; {_why(verdict)}; {tested}."
    aside = (chosen, verdict["alone"])  # of training alone the next sentence speaks
    equals, unclear = ([name for name in verdict[key] if name not in aside] for key in ("equals", "undecided"))
    if equals:
        text += f" Shown to be as good as {best}, within {margin(verdict)}: {_some(equals)}."
    if unclear:
        are = "is" if len(unclear) == 1 else "are"
        text += f" The rows are too few to say whether {_some(unclear)} {are} as good as {best}."
    out = [name for name in verdict.get("flattered", ()) if name not in verdict["ranked"]]
    if out:
        text += (
            f" Left out of this choice: {_some(out)}; what learns from validation data looks better there than it is."
        )
    return text


def _why(verdict: Verdict) -> str:
    """Why a method is taken that is not the best on validation rows."""
    preferred, mixtures = verdict.get("preferred"), verdict.get("mixtures", ())
    if preferred in mixtures and preferred == verdict["chosen"]:
        return "it mixes what the others found, and nothing that sends less is surely next to it"
    if preferred in mixtures:
        return f"it is shown to be as good as {preferred}, within {margin(verdict)}, and is simpler"
    if measure_of(verdict["measure"]).kind == "numbers":
        return "of such methods it sends least"
    return "of such methods it has the lowest log-loss, or nearly so and sends less"


def _today(verdict: Verdict) -> list[str]:
    """The method taken beside what people use today, on each silo alone."""
    today, chosen = verdict.get("baseline"), verdict["chosen"]
    if today is None or chosen is None or today.get("gain") is None:
        return []
    within = span(*_sided(today["low"], today["high"], today["gain"]), verdict)
    size = amount(abs(today["gain"]), verdict)
    gain = f"{size}{unit(verdict)}{within}"
    ahead = "ahead of" if today["gain"] >= 0 else "behind"
    low, high = (0.0 if end is None else end for end in (today["low"], today["high"]))
    chance = ", which may be chance" if low <= 0 <= high else ""
    plain = GUESS.get(today["name"], f"{today['name']} on each silo alone")
    alone = f"{plain} ({score(today['test'], verdict)})"
    text = f"On test rows {chosen} is {gain} {ahead} {alone}{chance}."
    if nought(size):
        text = f"On test rows {chosen} is level with {alone}: {gain}."
    if today["beats"] and stays(verdict) is None:
        text += (
            f" Validation rows preferred {today['name']} ({score(today['validation'], verdict)}), and these test rows "
            "contradict them: more rows would decide."
        )
    return [text]


def _plain_ahead(verdict: Verdict) -> list[str]:
    """Silos that no method here serves as well as a plain model of their own."""
    by_model = dict[str, list[str]]()
    for silo, name in verdict.get("plain_ahead", {}).items():
        by_model.setdefault(name, []).append(_called(silo))
    return [
        f"At {_some(silos)} {name} of {'its' if len(silos) == 1 else 'their'} own {'is' if name[-1] != 's' else 'are'} "
        "ahead of every method here, beyond chance."
        for name, silos in by_model.items()
    ]


def _whether(verdict: Verdict) -> str:
    alone, judged = verdict["alone"], verdict["judged"]
    if alone is None:
        return "Whether a silo is better off than alone is unknown: `separate` is not in the study. Add it."
    if judged is None:
        federated = {name: scores for name, scores in verdict["methods"].items() if "gain" in scores}
        if not federated:
            return "There is no federated method in the study to be better off with."
        most = max(federated, key=lambda name: federated[name]["better"])
        better, silos = federated[most]["better"], sum(federated[most][outcome] for outcome in OUTCOMES)
        if not better:
            return "No silo is shown to be better off than alone with any of the methods."
        are = "is" if better == 1 else "are"
        shown = f"{better} of {silos} silos {are} shown to be better off than alone"
        return f"With {most} {shown}, and with no other method more."
    scores, silos = verdict["methods"][judged], verdict["silos"]
    gain, chance = scores["gain"] or 0.0, scores["p"] >= ALPHA
    what = f"With {judged}"
    if judged != verdict["chosen"]:
        first = next((name for name in verdict["ranked"] if name != verdict["alone"]), judged)
        be = "is the best" if judged == first else "would be taken of those"
        what = f"{judged} {be} that federate{'s' * (judged == first)}; with it"
    how = "no gain over training alone is shown" if chance else f"the silos {'gain' if gain >= 0 else 'lose'}"
    direction = "higher" if (gain >= 0) == verdict["higher_better"] else "lower"
    within = span(*_sided(scores["gain_low"], scores["gain_high"], gain), verdict)
    size = amount(abs(gain), verdict)
    mean = f"{what} {how}: mean {verdict['title']} is "
    if chance and nought(size):
        mean += f"the same as alone{within}."
    else:
        mean += f"{size}{unit(verdict)}{within} {direction} than alone, "
        mean += f"which {'may' if chance else 'is unlikely to'} be chance (p = {scores['p']:.2g})."
    counts = [f"{scores[outcome]} {words}" for outcome, words in OUTCOMES.items() if scores[outcome]]
    least, most = (extreme(each["n"] for each in silos) for extreme in (min, max))
    tested = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    few = f"; each has {tested} test rows" if scores["undecided"] else ""
    left = verdict.get("undefined", [])
    without = f" {verdict['title']} is undefined in {_some(left)}, which all means leave out." if left else ""
    return f"{mean} Of {len(silos)} silo{'s' * (len(silos) > 1)}: {listed(counts)}{few}.{without}"


def _some(names: Sequence[str]) -> str:
    """All of a few names, of many the first."""
    return listed(names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"])


def _sided(low: float | None, high: float | None, gain: float) -> tuple[float | None, float | None]:
    """The ends of a gain's interval, counted in the direction in which it lies."""
    if gain >= 0 or low is None or high is None:
        return low, high
    return -high, -low


def _title(verdict: Verdict) -> str:
    """The measure; of errors, that less is better."""
    return f"{verdict['title']}{'' if verdict['higher_better'] else ' (lower is better)'}"


def margin(verdict: Verdict) -> str:
    """A difference that does not matter."""
    if verdict["relative"]:
        return f"{100 * verdict['margin']:.0f}%"
    return f"{amount(verdict['margin'], verdict)}{unit(verdict)}"


def score(value: float | None, verdict: Verdict) -> str:
    """A score with its unit."""
    measure = measure_of(verdict["measure"])
    return "∞" if value is None else measure.shown(value / 100 if measure.percent else value)


def amount(value: float, verdict: Verdict) -> str:
    """A difference of scores."""
    measure = measure_of(verdict["measure"])
    return measure.amount(value / 100 if measure.percent else value)


def signed(value: float, verdict: Verdict) -> str:
    """A difference with its sign, if one is left of it."""
    size = amount(abs(value), verdict)
    return size if nought(size) else f"{'+' if value > 0 else '−'}{size}"


def nought(size: str) -> bool:
    """Whether nothing is left of a difference as it is written."""
    return not size.strip("0.")


def span(low: float | None, high: float | None, verdict: Verdict) -> str:
    """An interval of a difference, as it follows one; nothing where the rows say nothing."""
    if low is None or high is None:
        return ""
    ends = [signed(end, verdict).removeprefix("+") for end in (low, high)]
    return f" [{', '.join(ends)}]"


def unit(verdict: Verdict) -> str:
    """What differences are counted in."""
    return measure_of(verdict["measure"]).unit


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
