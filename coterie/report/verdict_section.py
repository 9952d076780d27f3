"""The verdict: first in the report."""

from collections.abc import Mapping
from html import escape
from typing import Any

from coterie.measure.verdict_words import OUTCOMES, amount, ranked, score, silo, unit
from coterie.report.gains import gains
from coterie.report.html import cell, note, plot, section, table
from coterie.runs.read import Run

TOLD = 12  # with more silos the words are folded away


def verdict(run: Run) -> str:
    """Which method, who gains, from whom."""
    found = run.verdict
    if found is None:
        return ""
    body = "".join(f"<p class='lead'>{escape(text)}</p>" for text in found["words"]["consortium"])
    if found["silos"]:
        body += _tiles(found) + plot(gains(found["silos"], unit(found))) + _words(found) + _table(found)
        body += note(_how(found))
    elif any("gain" in scores for scores in found["methods"].values()):
        body += _methods(found)
    return section("Verdict", body)


def _tiles(found: Mapping[str, Any]) -> str:
    counts = found["methods"][found["judged"]]
    return (
        "<div class='tiles'>"
        + "".join(
            f"<div class='tile {outcome}'><b>{counts[outcome]}</b><span>{said}</span></div>"
            for outcome, said in OUTCOMES.items()
        )
        + "</div>"
    )


def _words(found: Mapping[str, Any]) -> str:
    items = "".join(f"<li>{escape(silo(each, found))}</li>" for each in ranked(found["silos"]))
    listed = f"<ul class='words'>{items}</ul>"
    if len(found["silos"]) <= TOLD:
        return listed
    return f"<details><summary>Every silo in words</summary>{listed}</details>"


def _table(found: Mapping[str, Any]) -> str:
    rows = {
        s["silo"]: cell(score(s["score"], found))
        + cell(f"{score(s['score_low'], found)} to {score(s['score_high'], found)}")
        + cell(score(s["alone"], found))
        + cell(_signed(s["gain"], found))
        + cell(f"{_signed(s['low'], found)} to {_signed(s['high'], found)}")
        + cell(_signed(s["shrunk"], found))
        + cell(f"{s['p_adjusted']:.2g}")
        + cell(str(s["n"]))
        + cell(OUTCOMES[s["outcome"]], words=True)
        for s in found["silos"]
    }
    headings = [
        "silo", found["judged"], "95%", found["alone"], "gain", "95%", "with the others'", "p (adjusted)", "test rows",
        "outcome",
    ]  # fmt: skip
    shown = table(headings, rows, tall=True, words="outcome")
    return f"<details><summary>Every silo as a table</summary>{shown}</details>"


def _methods(found: Mapping[str, Any]) -> str:
    """Without a chosen method: how many silos are better off with each."""
    rows = {
        name: cell(score(s["test"], found))
        + cell(_signed(s["gain"], found))
        + "".join(cell(str(s[outcome])) for outcome in OUTCOMES)
        for name, s in found["methods"].items()
        if "gain" in s
    }
    return table(["method", "test", "gain", *OUTCOMES.values()], rows)


def _how(found: Mapping[str, Any]) -> str:
    pairing = (
        "Gains are paired over the same test rows; intervals, 95%, are Student's, of how each row moves the measure, "
        "with one row won and one lost added, so that few rows never make certain."
        if found["paired"]
        else "The silos do not show their test rows: intervals come from their scores' standard errors, unpaired, and "
        "find less than a paired test would."
    )
    return (
        f"Every method is judged at the round that validation data pick, by {found['title']}. {pairing} Better and "
        "worse: told from zero, with at most 5% of such silos wrong in the long run (Benjamini and Hochberg over the "
        f"silos). As well off alone: two one-sided tests at 5% place the gain within {_margin(found)}. With the "
        "others': the gain that a hierarchical model over all silos expects. Mostly from: those who carry more than "
        "half of what a silo takes from others."
    )


def _margin(found: Mapping[str, Any]) -> str:
    if found["relative"]:
        return f"{100 * found['margin']:.0f}% of the score alone"
    return f"{amount(found['margin'], found)}{unit(found)} of zero"


def _signed(value: float | None, found: Mapping[str, Any]) -> str:
    if value is None:
        return "-"
    return f"{'+' if value >= 0 else '−'}{amount(abs(value), found)}"
