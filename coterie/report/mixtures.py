"""What each silo's mixture is made of: a bar for each silo."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from coterie.methods.stack import Stack
from coterie.report.canvas import Figure, stacked_bars
from coterie.report.html import blocks, note, plot, section
from coterie.runs.read import Run

TEXT = (
    "Each silo's model mixes the predictions of several; a bar shows their shares. The silo's validation rows found "
    "them, together with what all silos prefer: a silo with few rows follows the others. Guaranteed: on these rows the "
    "mixture is never much worse than any of its parts, whichever turns out best. Its mean log-loss is above that of a "
    "part by at most log(1/share in the prior) divided by the number of rows. Not guaranteed, but measured on test "
    "data: how it does on new rows."
)
NAMED = 20  # silos of which each one's validation rows are listed
BET = (
    "The test is a bet on the silo's validation rows, which keeps its level however few they are: the chance that it "
    "switches any silo wrongly is at most α = {level:g}, over all silos together."
)
T_TEST = (
    "The test is a t-test of the silo's validation rows with two rows more, both lost. It is made so that the chance "
    "that any silo is switched wrongly is α = {level:g}, over all silos together; of numbers, whose errors have no "
    "bound, no test can guarantee that."
)


def mixtures(run: Run) -> str:
    """The shares of every silo, and who was switched to what it has today."""
    shown = {
        name: plot(drawn(scores["mixtures"])) + note(_switched(run, name, scores)) + _distilled(scores)
        for name, scores in run.methods.items()
        if scores.get("mixtures")
    }
    return section("What each silo mixes", note(TEXT) + blocks("Method", shown)) if shown else ""


def drawn(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """Stacked bars, from shares by silo and candidate."""
    names = dict.fromkeys(name for each in shares.values() for name in each)
    parts = {name: [each.get(name, 0.0) for each in shares.values()] for name in names}
    return stacked_bars(list(shares), parts, "%{y:.1%}").update_yaxes(title_text="share", range=[0, 1])


def _distilled(scores: Mapping[str, Any]) -> str:
    """What silos lose that deploy one network instead of the mixture."""
    losses = scores.get("distilled")
    if not losses:
        return ""
    mixture, network = (fmean(each[key] for each in losses.values()) for key in ("mixture", "network"))
    lost = {silo: each["network"] - each["mixture"] for silo, each in losses.items()}
    most = max(lost, key=lost.__getitem__)
    return note(
        "What is deployed is one network for each silo that learned the mixture's predictions. It has a mean "
        f"validation loss {network:.3f}, the mixture {mixture:.3f}; "
        f"the most that a silo loses is {lost[most]:.3f} ({most})."
    )


def _switched(run: Run, name: str, scores: Mapping[str, Any]) -> str:
    """What the gate decided, by which test, at what level, on how many rows."""
    closed = scores.get("gated") or {}
    numbers = run.results is not None and "rmse" in set(run.results["measure"])
    test = (T_TEST if numbers else BET).format(
        level=run.study.get("methods", {}).get(name, {}).get("alpha", Stack.alpha)
    )
    stated = f"{test}{_held_out(run, scores)}"
    if not closed:
        return f"No silo has anything today that a paired test of its validation rows finds better. {stated}"
    named = ", ".join(f"{silo} ({candidate})" for silo, candidate in closed.items())
    return f"Better than the mixture by a paired test of the silo's validation rows, so taken alone: {named}. {stated}"


def _held_out(run: Run, scores: Mapping[str, Any]) -> str:
    """How many validation rows each silo had with the first seed, whose models are shown."""
    first: Mapping[str, Any] = next(iter((run.about.get("samples") or {}).values()), {})
    rows = {silo: first[silo]["validation"] for silo in scores["mixtures"] if "validation" in first.get(silo, {})}
    if not rows:
        return ""
    listed = ", ".join(f"{silo} {n:,}" for silo, n in rows.items())
    shown = listed if len(rows) <= NAMED else f"{min(rows.values()):,} to {max(rows.values()):,} a silo"
    group = run.data.get("group")
    return f" Validation rows: {shown}{f'; those of one {group} count as one to the test' if group else ''}."
