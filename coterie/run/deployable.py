"""What to deploy: for each silo the model of the method that the verdict takes, with a card that says what it is."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.measure.measures import measure_of
from coterie.measure.verdict_words import OUTCOMES, listed, score, signed, span, unit
from coterie.personal.file import about_of, copy_whole

FOLDER = "deploy"
MODEL, CARD, ABOUT = "model.safetensors", "card.md", "card.json"


def write_deployable(out: Path, summary: Mapping[str, Any], counts: Mapping[str, Mapping[str, int]]) -> None:
    """One folder a silo, from the models that the run kept; none where no method was chosen or no model kept."""
    verdict = summary["verdict"]
    models = out / "models" / str(verdict["chosen"])
    if verdict["chosen"] is None or not models.is_dir():
        return
    for file in sorted(models.glob("*.safetensors")):
        known = about_of(file)
        silo = known["silo"]
        folder = out / FOLDER / file.stem  # which is each silo's own, where two names make one
        folder.mkdir(parents=True, exist_ok=True)
        copy_whole(file, folder / MODEL)
        about = _about(known, folder / MODEL, summary, counts.get(silo, {}))
        (folder / ABOUT).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", "utf-8")
        (folder / CARD).write_text(_card(about), "utf-8")


def _about(
    known: Mapping[str, str], model: Path, summary: Mapping[str, Any], counts: Mapping[str, int]
) -> dict[str, Any]:
    """What is known of a model: from its file, from the summary, and how many rows its silo has."""
    verdict, silo = summary["verdict"], known["silo"]
    method = summary["methods"][verdict["chosen"]]
    standing: Mapping[str, Any] = next((each for each in verdict["silos"] if each["silo"] == silo), {})
    own = verdict["judged"] == verdict["chosen"]
    return {
        "silo": silo,
        "method": verdict["chosen"],
        "study": summary["study"],
        "round": json.loads(known["round"]),
        "trained_on": known.get("trained_on", "train rows"),
        "rows": dict(counts),
        "judged_by": verdict["title"],
        "measures": {
            name: each["silos"].get(silo) for name, each in method.get("measures", {}).items() if silo in each["silos"]
        },
        "interval": [standing.get("score_low"), standing.get("score_high")] if own else None,
        "temperature": json.loads(known.get("temperature", "null")),
        "threshold": json.loads(known.get("threshold", "null")),
        "beside_alone": {key: standing.get(key) for key in ("outcome", "gain", "low", "high", "n")} if own else None,
        "beside_today": standing.get("baseline") if own else None,
        "learned_from": standing.get("peers", []) if own else [],
        "measure": verdict["measure"],
        "versions": summary["versions"],
        "base": summary.get("base"),
        "sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
    }


def _card(about: Mapping[str, Any]) -> str:
    """The same for people."""
    rows = about["rows"]
    lines = [
        f"# The model of {about['silo']}",
        "",
        f"Trained by {about['method']} in the study {about['study']}, taken after round {about['round']}, which "
        "validation rows picked.",
    ]
    if rows:
        lines += [
            f"Rows of this silo: {rows['train']} to train, {rows['validation']} to pick and calibrate, {rows['test']} "
            "to test, which nothing else has seen.",
        ]
    if about["trained_on"] != "train rows":
        lines += [
            "The measures below are of a model that never saw the test rows; this one was trained again with them."
        ]
    if about["learned_from"]:
        lines += [f"It learned mostly from {listed(about['learned_from'])}."]
    lines += ["", "| measure | on this silo's test rows |", "|---|---|"]
    for name, value in about["measures"].items():
        plain = measure_of(name.removesuffix("_raw"))
        before = ", before tempering" if name.endswith("_raw") else ""
        within = _within(about) if name == about["measure"] else ""
        lines += [f"| {plain.title}{before} | {plain.shown(value)}{within} |"]
    if about["beside_alone"] is not None and about["beside_alone"]["gain"] is not None:
        found, verdict = about["beside_alone"], {"measure": about["measure"]}
        within = span(found["low"], found["high"], verdict)
        gain = f"{signed(found['gain'], verdict)}{unit(verdict)}{within}"
        lines += ["", f"Beside a model of this silo alone: {OUTCOMES[found['outcome']]} ({gain}, 95%)."]
    lines += ["", "## Use", "", f"`coterie predict {MODEL} --data new-rows.csv`"]
    if about["temperature"] is not None:
        lines += [f"Probabilities are tempered (temperature {about['temperature']:.3g})."]
    if about["threshold"] is not None:
        lines += [
            f"The positive class is called from a probability of {about['threshold']:.3g} on (most sensitivity "
            "plus specificity on validation rows, or the share of positives where these are few)."
        ]
    if about["base"]:
        lines += ["", f"Part of it was not trained, and is the same in every silo's: SHA-256 `{about['base']}`."]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines += ["", f"Made with {versions}. SHA-256 of {MODEL}: `{about['sha256']}`."]
    return "\n".join(lines) + "\n"


def _within(about: Mapping[str, Any]) -> str:
    if about["interval"] is None or None in about["interval"]:
        return ""
    low, high = (score(end, {"measure": about["measure"]}) for end in about["interval"])
    return f" ({low} to {high}, 95%)"
