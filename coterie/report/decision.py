"""The first screen, for whoever decides: what to take, what it brings and costs, what may go wrong."""

from collections.abc import Mapping, Sequence
from html import escape
from os.path import relpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coterie.measure.significance import ALPHA
from coterie.measure.verdict_words import OUTCOMES, Verdict, amount, listed, nought, score, stays, unit
from coterie.report.html import facts, note
from coterie.runs.read import Run

BESIDE_PLAIN = OUTCOMES | {"equivalent": "as well off"}
NAMED = 5  # silos; more are counted
TOLD = 2  # remarks; more are counted
LINKED = 12  # folders of models; more are folded away


def decision(run: Run, beside: Path | None = None) -> str:
    """The section; `beside` is the folder that the page is written to, where that is not the run's."""
    found = run.verdict
    if found is None:
        return ""
    body = f"<h3 class='headline'>{escape(headline(found))}</h3>"
    if found["chosen"] is None:
        body += f"<p>{escape(found['words']['consortium'][0])}</p>"
    answers = {
        "Caution": _caution(run.flattering),
        "Gain": escape(gain(found)) if found["judged"] is not None else "",
        "Risk": escape(risk(found)) if found["silos"] else "",
        "Plain models": escape(baselines(found)),
        "Cost": escape(cost(run)),
        "Deploy": _models(run, beside),
    }
    body += (_tiles(found) if found["silos"] else "") + facts("answers", answers)
    why = (run.about.get("measure") or {}).get("why")
    judged_by = note(f"Judged by {found['title']}: {why}") if why else ""
    return f"<section>{body}{judged_by}</section>"


def headline(found: Verdict) -> str:
    """What to do."""
    chosen = found["chosen"]
    if chosen is None:
        return "No method can be recommended."
    if (plain := stays(found)) is not None:
        return f"Stay with {plain} on each silo alone for now."
    if chosen == found["alone"]:
        return f"Train alone: take {chosen}."
    unsure = found["methods"][chosen].get("p", 0.0) >= ALPHA
    return f"Take {chosen}{'; a gain over training alone is not shown' if unsure else ''}."


def _caution(remarks: Mapping[str, str]) -> str:
    """What of the silos' tables makes scores flatter."""
    if not remarks:
        return ""
    more = len(remarks) - TOLD
    others = f" of {more} more column{'s' * (more > 1)}" if more > 0 else ""
    named = ". ".join(list(remarks.values())[:TOLD])
    return f"The scores may flatter. {escape(named)}. <a href='#training'>All remarks{others}</a>."


def gain(found: Verdict) -> str:
    """What the method brings on average, and how sure that is."""
    judged, alone = found["judged"], found["alone"]
    scores, before = found["methods"][judged], found["methods"][alone]
    what = judged if found["chosen"] in (judged, None) else f"{judged}, the best method that federates,"
    by = scores["gain"] or 0.0
    text = f"With {what} the silos' {found['title']} is on average "
    if same := nought(amount(abs(by), found)):
        text += f"the same as alone: {score(scores['test'], found)}."
    else:
        instead = f"{score(scores['test'], found)} instead of {score(before['test'], found)}"
        text += f"{_side(by, found)} than alone: {instead}."
    if scores["gain_low"] is None or scores["gain_high"] is None:
        return text
    sure = ": unlikely to be chance" if scores["p"] < ALPHA else "" if same else ", so it may be chance"
    return f"{text} With 95% confidence the difference lies between {_ends(scores, found)}{sure}."


def cost(run: Run) -> str:
    """The rounds of the method, and what each asks of a silo."""
    found = run.verdict or {}
    method = found.get("chosen") or found.get("judged")
    if method is None or method not in run.methods:
        return ""
    sent = [run.methods[method].get(key) for key in ("bytes_up", "bytes_down")]
    own = run.results[run.results["method"] == method]
    rounds, silos = int(own["round"].max()), len(run.methods[method]["per_silo_picked"])
    if any(each is None for each in sent) or not rounds or not silos:
        return ""
    if not any(sent):
        return "Nothing is exchanged between silos."
    up, down = (size(float(each or 0) / rounds / silos) for each in sent)
    return f"{rounds:,} rounds of training. In each, a silo sends {up} and receives {down} on average."


def risk(found: Verdict) -> str:
    """Who is worse off than alone, and for whom the test rows cannot decide."""
    silos = found["silos"]
    worse = [each["silo"] for each in silos if each["outcome"] == "worse"]
    text = "No silo is shown to be worse off than alone."
    if worse:
        share = f"{len(worse)} of {len(silos)} silos ({100 * len(worse) / len(silos):.0f}%)"
        text = f"{share} {'is' if len(worse) == 1 else 'are'} worse off than alone: {_named(worse)}."
    undecided = [each for each in silos if each["outcome"] == "undecided"]
    if not undecided:
        return text
    every = len(undecided) == len(silos) > 1
    which = f"all {len(silos)}" if every else f"{len(undecided)} of {len(silos)}"
    return f"{text} For {which} silos the test rows cannot decide{_would_decide(undecided)}."


def baselines(found: Verdict) -> str:
    """How the silos fare beside the best model that needs no federation, where such were trained."""
    beside = [each["baseline"] for each in found["silos"] if each.get("baseline")]
    if not beside:
        return ""
    outcomes = [each["outcome"] for each in beside]
    counts = [f"{outcomes.count(key)} {text}" for key, text in BESIDE_PLAIN.items() if key in outcomes]
    names = _named(list(dict.fromkeys(each["name"] for each in beside)))
    return f"Compared with {names} on each silo alone, of {len(beside)} silos with {found['judged']}: {listed(counts)}."


def _would_decide(undecided: Sequence[Mapping[str, Any]]) -> str:
    needs = sorted((each["needs"], each["silo"]) for each in undecided if each.get("needs"))
    if not needs:
        return ", and no likely number of them would"
    if len(undecided) <= NAMED:
        (least, first), *others = needs
        more = [f"{count:,} for {silo}" for count, silo in others]
        return f": about {listed([f'{least:,} more would decide for {first}', *more])}"
    half = (len(undecided) + 1) // 2
    most, count = (needs[half - 1][0], "half") if half <= len(needs) else (needs[-1][0], f"{len(needs)}")
    return f": about {most:,} more each would decide for {count} of them"


def _tiles(found: Verdict) -> str:
    counts = found["methods"][found["judged"]]
    tiles = [
        f"<div class='tile {outcome}'><b>{counts[outcome]}</b><span>{text}</span></div>"
        for outcome, text in OUTCOMES.items()
    ]
    beside = note(f"The {len(found['silos'])} silos with {found['judged']}, beside training alone:")
    return f"{beside}<div class='tiles'>{''.join(tiles)}</div>"


def _models(run: Run, beside: Path | None) -> str:
    """Where the models to deploy are: a folder for each silo, or the file that a run always saves."""
    method = (run.verdict or {}).get("chosen")
    if run.folder is None or method is None:
        return ""
    deploy = run.folder / "deploy"
    away = "" if beside is None else Path(relpath(run.folder, beside)).as_posix() + "/"  # "./" beside its run
    if deploy.is_dir():
        names = sorted(path.name for path in deploy.iterdir() if path.is_dir())
        links = ", ".join(_link(f"{away}deploy/{name}/", name) for name in names)
        if len(names) <= LINKED:
            return f"Each silo's folder, with its model of {escape(method)} and a card: {links}."
        holds = f"The folders of {len(names)} silos, each with its model of {escape(method)} and a card"
        return f"<details><summary>{holds}</summary>{links}</details>"
    models = f"models/{method}/"
    return f"Each silo's model: {_link(f'{away}{models}', models)}" if (run.folder / models).is_dir() else ""


def _link(path: str, name: str) -> str:
    """To a folder by its way from the page: a report and its models travel together."""
    return f"<a href='{quote(path)}'>{escape(name)}</a>"


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return listed(names if more <= 1 else [*names[:NAMED], f"{more} more"])


def _side(value: float, found: Verdict) -> str:
    return f"{amount(abs(value), found)}{unit(found)} {'better' if value >= 0 else 'worse'}"


def _ends(scores: Mapping[str, Any], found: Verdict) -> str:
    low, high = scores["gain_low"], scores["gain_high"]
    if low < 0 <= high:
        return f"{_side(low, found)} and {_side(high, found)}"
    near, far = sorted((low, high), key=abs)
    return f"{amount(abs(near), found)} and {_side(far, found)}"


def size(count: float) -> str:
    """So many bytes, in the largest unit of which that is one at least."""
    for one, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= one:
            return f"{count / one:.3g} {name}"
    return f"{count:.0f} bytes"
