"""The evidence: every silo's gain with its interval, how it was tested, and every measure of every method."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from coterie.measure.measures import MEASURES, Measure, measure_of
from coterie.measure.verdict_words import OUTCOMES, amount, listed, margin, ranked, score, signed, silo, unit
from coterie.report.figures import gains
from coterie.report.html import cell, cells, facts, note, plot, section, table
from coterie.report.table import marked
from coterie.runs.read import Run

FEW = 12  # with more silos the sentences are folded away
RAW = "_raw"
POOLED = ", pooled"  # how the names of baselines on all silos' rows end


def verdict(run: Run) -> str:
    """Which method, who gains, from whom, and how that was tested."""
    found = run.verdict
    if found is None:
        return ""
    body = "".join(f"<p>{escape(text)}</p>" for text in found["words"]["consortium"])
    if found["silos"]:
        body += plot(gains(found["silos"], unit(found))) + _words(found) + _table(found) + _design(run, found)
        body += note(_how(found))
    elif any("gain" in scores for scores in found["methods"].values()):
        body += _methods(found)
    return section("Verdict", body)


def measures(run: Run) -> str:
    """Every measure of every method and baseline, the study's own first: mean over silos, and of all rows together."""
    methods = {name: each["measures"] for name, each in run.methods.items() if each.get("measures")}
    if not methods:
        return ""
    for name, each in run.baselines.items():
        methods[name if name.endswith(POOLED) else f"{name}, alone"] = each.get("measures") or {}
    columns = _columns(methods, (run.verdict or {}).get("measure"))
    text = (
        "Test data at the picked round, mean over seeds; the study's own measure first. Raw: as the models gave "
        "their probabilities, before validation data set a temperature for each silo."
    )
    body = note(text)
    for title, key in (("Mean over silos", "test"), ("All test rows together", "pooled")):
        shown = [
            marked(
                {name: each.get(of, {}).get(key) for name, each in methods.items()}, measure.shown, not measure.higher
            )
            for of, (_, measure) in columns.items()
        ]
        rows = {name: "".join(cell(each[name].text, each[name].best) for each in shown) for name in methods}
        body += f"<h4>{title}</h4>" + table(["method", *(heading for heading, _ in columns.values())], rows)
    return section("Every measure", body + _undefined(methods, columns))


def _columns(methods: Mapping[str, Mapping[str, Any]], own: str | None) -> dict[str, tuple[str, Measure]]:
    """Of every measure that some method has its heading; the study's own first, raw beside tempered."""
    known = dict.fromkeys(key for each in methods.values() for key in each if key.removesuffix(RAW) in MEASURES)
    first = [key for key in known if key == own]
    plain = first + [key for key in known if key != own and not key.endswith(RAW)]
    ordered = [key for each in plain for key in (each, each + RAW) if key in known]
    return {key: headed(key) for key in ordered}


def headed(key: str) -> tuple[str, Measure]:
    """The heading of a measure, which may be of what is not tempered, and the measure."""
    measure = measure_of(key.removesuffix(RAW))
    return measure.title + ", raw" * key.endswith(RAW), measure


def _undefined(methods: Mapping[str, Mapping[str, Any]], columns: Mapping[str, tuple[str, Measure]]) -> str:
    """A line for each measure that some silos have too few rows, or one class alone, for."""
    lines = ""
    for key, (title, _) in columns.items():
        silos = sorted({silo for each in methods.values() for silo in each.get(key, {}).get("undefined", ())})
        if not silos or key.endswith(RAW):
            continue
        some = f"{title} is undefined in {len(silos)} silo{'s' * (len(silos) > 1)}, which its mean leaves out"
        named = note(f"{some}: {listed(silos)}.")
        folded = f"<details><summary>{escape(some)}</summary>{note(', '.join(silos))}</details>"
        lines += named if len(silos) <= FEW else folded
    return lines


def _design(run: Run, found: Mapping[str, Any]) -> str:
    """How the data were split, how often all was repeated, what the tests allow for and what they could find."""
    rows, judged = [each["n"] for each in found["silos"]], found["methods"][found["judged"]]
    each = f"{min(rows):,} to {max(rows):,}" if min(rows) < max(rows) else f"{min(rows):,}"
    known = {
        "Test rows": f"{sum(rows):,} in {len(rows)} silos, {each} each",
        "Split": _split(run.data),
        "Seeds": _seeds([str(seed) for seed in run.results["seed"].unique()]),
        "Multiplicity": "Benjamini and Hochberg over the silos at 5%; Holm over pairs of methods",
    }
    if judged.get("between") is not None:
        spread = f"{amount(judged['between'], found)}{unit(found)} (standard deviation)"
        apart = f"their true gains differ by about {spread}"
        known["Between silos"] = apart if judged["between"] else "these rows show no difference in their true gains"
    if needs := [s["needs"] for s in found["silos"] if s["outcome"] == "undecided" and s.get("needs")]:
        more = f"{min(needs):,} to {max(needs):,}" if min(needs) < max(needs) else f"{min(needs):,}"
        known["Power"] = f"to decide with a power of 80%, each undecided silo needs {more} more test rows"
    return "<h4>Design</h4>" + facts("answers", {name: escape(text) for name, text in known.items()})


def _seeds(seeds: Sequence[str]) -> str:
    if len(seeds) > 1:
        return f"{len(seeds)} ({listed(seeds)}); scores and gains are means over them"
    return "one: how far another split or another start would move the scores is not in the intervals"


def _split(data: Mapping[str, Any]) -> str:
    """Which rows are for testing, from the study's [data]."""
    parts, column, validating = [], data.get("split_column"), f"{100 * data.get('validation', 0):g}%"
    limited = not (data.get("group") or data.get("time"))
    tested, validated = (
        f", about {most:,} at most" if limited and (most := data.get(key)) else ""
        for key in ("most_test", "most_validation")
    )
    if data.get("split"):
        parts.append(f"{data.get('name')}, dealt to the silos by {data['split']}")
    if column:
        parts.append(f"as the column {column} has it")
    elif data.get("test_share") == "own":
        parts.append("the set's own test samples for testing")
    elif "test_share" in data:
        parts.append(f"{100 * data['test_share']:g}% of each silo's rows for testing{tested}")
    if data.get("validation"):
        some = f"where no row of a silo validates, {validating} of those to train"
        parts.append((some if column else f"{validating} of the rows to train on for validation") + validated)
    if data.get("group"):
        parts.append(f"no {data['group']} on two sides")
    if data.get("time"):
        parts.append(f"test rows are the last by {data['time']}")
    elif "test_share" in data and not column:
        parts.append("drawn at random")
    return "; ".join(parts)


def _words(found: Mapping[str, Any]) -> str:
    items = "".join(f"<li>{escape(silo(each, found))}</li>" for each in ranked(found["silos"]))
    listed = f"<ul class='words'>{items}</ul>"
    if len(found["silos"]) <= FEW:
        return listed
    return f"<details><summary>Every silo in a sentence</summary>{listed}</details>"


def _table(found: Mapping[str, Any]) -> str:
    plain = any(s.get("baseline") for s in found["silos"])
    rows = {
        s["silo"]: cells(
            score(s["score"], found),
            f"{score(s['score_low'], found)} to {score(s['score_high'], found)}",
            score(s["alone"], found),
            _signed(s["gain"], found),
            f"{_signed(s['low'], found)} to {_signed(s['high'], found)}",
            _signed(s["shrunk"], found),
            f"{_signed(s['shrunk_low'], found)} to {_signed(s['shrunk_high'], found)}",
            f"{s['p_adjusted']:.2g}",
            f"{s['n']:,}",
            f"{s['needs']:,}" if s.get("needs") and s["outcome"] == "undecided" else "-",
        )
        + (_beside(s.get("baseline"), found) if plain else "")
        + cell(OUTCOMES[s["outcome"]], words=True)
        for s in ranked(found["silos"])
    }
    headings = [
        "silo", found["judged"], "95%", found["alone"], "gain", "95%", "shrunken", "95%", "p (adjusted)", "test rows",
        "rows needed", *(["plain model", "gain over it", "95%"] if plain else []), "outcome",
    ]  # fmt: skip
    shown = table(headings, rows, tall=True, words="outcome")
    return f"<details><summary>Every silo as a table</summary>{shown}</details>"


def _beside(baseline: Mapping[str, Any] | None, found: Mapping[str, Any]) -> str:
    """A silo's best plain model, and the gain over it."""
    if baseline is None:
        return cells("-", "-", "-")
    span = f"{_signed(baseline['low'], found)} to {_signed(baseline['high'], found)}"
    return cells(f"{baseline['name']} {score(baseline['score'], found)}", _signed(baseline["gain"], found), span)


def _methods(found: Mapping[str, Any]) -> str:
    """Without a chosen method: how many silos are better off with each."""
    rows = {
        name: cells(score(s["test"], found), _signed(s["gain"], found), *(str(s[outcome]) for outcome in OUTCOMES))
        for name, s in found["methods"].items()
        if "gain" in s
    }
    return table(["method", "test", "gain", *OUTCOMES.values()], rows)


def _how(found: Mapping[str, Any]) -> str:
    pairing = (
        "Gains are paired over the same test rows; intervals, 95%, are Student's, of how each row moves the measure, "
        "with one row won and one lost added, so that a few rows prove nothing."
        if found["paired"]
        else "The silos do not show their test rows: intervals come from their scores' standard errors, unpaired, and "
        "find less than a paired test would."
    )
    return (
        f"Every method is judged at the round that validation data pick, by {found['title']}. {pairing} Better and "
        "worse: the gain differs from zero, with at most 5% of such silos wrong in the long run (Benjamini and "
        "Hochberg over the silos). As well off alone: two one-sided tests at 5% place the gain within "
        f"{margin(found)} of {'the score alone' if found['relative'] else 'zero'}. Shrunken: "
        "the gain that a hierarchical model over all silos expects. Rows needed: about so many more test rows would "
        "decide, with a power of 80%. Mostly from: those who carry more than "
        "half of what a silo takes from others."
    )


def _signed(value: float | None, found: Mapping[str, Any]) -> str:
    return "-" if value is None else signed(value, found)
