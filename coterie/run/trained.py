"""One method on one seed: trained from where its checkpoint stands, calibrated, and its models written."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.durable import sync_all
from coterie.engine import ranks
from coterie.engine.method import Method
from coterie.engine.predictors import Distilled, Ensemble
from coterie.engine.rounds import Outcome, Progress
from coterie.errors import BadInput
from coterie.methods.stack import Stack
from coterie.personal.export import save_models
from coterie.run.assembly import Assembly
from coterie.run.finished import calibrate
from coterie.run.refit import refit, refits
from coterie.runs.checkpoint import Checkpoint
from coterie.studies.study import Study


def train_one(
    study: Study, name: str, federation: Assembly, folder: Path, out: Path, on_round: Callable[[Progress], None]
) -> None:
    """One method on one seed: its models into the folder of the run, what is known of it into its checkpoint."""
    checkpoint = Checkpoint(folder, name, federation.seed, study.machine.checkpoint_every)
    outcome = checkpoint.ended()
    if ranks.from_first(outcome is not None):
        outcome = outcome or Outcome(None)  # which the first process alone reads
        on_round(Progress(study.training.rounds, study.training.rounds, outcome.score, outcome.measure))
        return
    try:
        kept = keeps_models(study, federation)
        outcome = federation.train(study.methods[name], on_round, study.training_of(name), checkpoint, kept)
    except BadInput as error:
        raise BadInput(f"[methods.{name}] {error}") from None
    calibrate(outcome, {silo.name: silo for silo in federation.members}, study.training.positive)
    _note_mixtures(outcome, study.methods[name], federation)
    if kept:
        _save(study, name, federation, outcome, out / "models" / name, on_round)
    checkpoint.end(outcome)


def _save(
    study: Study, name: str, federation: Assembly, judged: Outcome, folder: Path, on_round: Callable[[Progress], None]
) -> None:
    """Write a method's models: those that were judged or, of data split by time, some that know the last rows too."""
    saved = judged
    if refits(study, name):
        saved = refit(
            study, name, federation, lambda p: on_round(replace(p, score=judged.score, measure=judged.measure))
        )
        judged.refit_rounds = saved.measured[-1]
    if ranks.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)  # a process that was killed here left safetensors' temporary file
    ranks.from_all(None)  # that is done before any process writes
    if saved.models is None or saved.picked is None:
        return
    silos, names = federation.here(), [silo.name for silo in federation.members]
    known = about(study, name, federation, saved.picked.round)
    known |= {"trained_on": "train and test rows"} if saved is not judged else {}
    fitted = {silo: _calibration(saved, silo, study.training.positive) for silo in names}
    trees = {silo.name: silo.trees for silo in silos}
    whole = (federation.model, saved.models, [silo.name for silo in silos], known, federation.schemas, fitted)
    save_models(folder, *whole, apart=True, trees=trees, among=names)
    sync_all(folder)


def _note_mixtures(outcome: Outcome, method: Method, federation: Assembly) -> None:
    """Note what each silo's model mixes or has learned from, and who is better off with what it has today."""
    if not isinstance(method, Stack):
        return
    models, silos = outcome.models, [silo.name for silo in federation.here()]  # no models, where a process has no silos
    lost = models.losses.tolist() if isinstance(models, Distilled) else []
    for silo, losses in _of_all(silos, lost).items():
        if np.isfinite(losses).all():
            outcome.distilled[silo] = dict(zip(("mixture", "network"), losses, strict=True))
    names = [each.name for each in method.candidates]
    today = [names[i] for i in method.today]
    mixed = models.weights if isinstance(models, Ensemble) else models.shares if isinstance(models, Distilled) else None
    known = _of_all(silos, [] if mixed is None else mixed.tolist())
    for silo, shares in ((member.name, known[member.name]) for member in federation.members if member.name in known):
        outcome.mixtures[silo] = dict(zip(names, shares, strict=True))
        only = names[int(np.argmax(shares))]
        if max(shares) == 1 and only in today:
            outcome.gated[silo] = only


def _of_all(silos: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """What is known of the silos of this process (or nothing is), with what is known of the others'."""
    here = dict(zip(silos, values, strict=True)) if values else {}
    return {silo: value for each in ranks.from_all(here) for silo, value in each.items()}


def _calibration(outcome: Outcome, silo: str, positive: int | str) -> dict[str, float]:
    """What a model's file holds beside its weights, of a silo's own."""
    found = {"temperature": outcome.temperatures.get(silo), "threshold": outcome.thresholds.get(silo)}
    known = {key: value for key, value in found.items() if value is not None}
    return known | ({"positive": int(positive != 0)} if "threshold" in known else {})


def keeps_models(study: Study, federation: Assembly) -> bool:
    """Whether the models of a seed are written: those of the first."""
    return study.machine.models and federation.seed == study.seeds[0]


def about(study: Study, name: str, assembly: Assembly, round: int) -> dict[str, Any]:
    """What a model's file says of it, beside its silo."""
    sample, method = assembly.silos[0].train, study.methods[name]
    return {
        "method": name,
        "study": study.name,
        "round": round,
        "seed": assembly.seed,
        "model": assembly.table,
        "shape": list(sample.x.shape[1:]),
        "outputs": assembly.model.classes or math.prod(sample.y.shape[1:]),
        "input": str(sample.x.dtype),
        **(method.about(study.data.get("incumbent", "")) if isinstance(method, Stack) else {}),
    }
