"""A study between real silos: every method and seed over a transport, resumed where it broke, one folder at the end."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from coterie.data.own.agree import Difference
from coterie.deploy.gathering import Gathering
from coterie.deploy.home import note_progress, progress
from coterie.deploy.messages import Job, Transport
from coterie.deploy.patience import Patience
from coterie.deploy.remote import Declaration, Remote
from coterie.deploy.search import NOT_TUNED, RemoteSearch, extra_rounds, search_rounds
from coterie.engine.exchange import as_table
from coterie.engine.rounds import Outcome, Progress, run_rounds
from coterie.engine.training import suited
from coterie.errors import BadInput, warn
from coterie.measure.measures import AUTO
from coterie.methods import written
from coterie.models import build
from coterie.options import resolved
from coterie.run.finished import TUNING, Facts, Finished, collected, write
from coterie.run.tuning import COLUMNS, searched
from coterie.runs.checkpoint import Checkpoint
from coterie.runs.folder import checkpoint_folder
from coterie.studies.study import Study, check

CPU = torch.device("cpu")  # where the server's part is computed
TOTALS = ("bytes_up", "bytes_down")  # of `progress.json`: what is reported of these is added
OWN_DATA = {"name": "silos"}  # the `[data]` of such a study: each silo has its own


@dataclass
class RemoteRun:
    """A run between real silos, as its folder on the coordinator's disk knows it."""

    folder: Path
    study: Study
    transport: Transport
    silos: Callable[[], list[str]]  # those registered by now
    patience: Patience = Patience()
    tuning: dict[str, int] = field(default_factory=dict)  # by label, the rounds of the search before its own

    @property
    def gathering(self) -> Gathering:
        """Who takes part."""
        return Gathering(self.folder, self.transport, self.silos, self.patience, self._report)

    def run(self, command: str) -> Finished:
        """All methods and seeds; then results, summary and report in the run's folder."""
        members = self.gathering.members()
        fixed = self.study.fixed()  # what trains where nothing is searched for
        if any(each.sizes[1] for each in members.values()):
            self.tuning, fixed = extra_rounds(self.study), replace(self.study, own=fixed.own)
        self.study = self.study.pinned()
        proposed = replace(self, study=fixed.pinned())
        self.gathering.await_approval([proposed._job(name, fixed.seeds[0], members) for name in fixed.methods])
        self.study = self.tuned(members)
        outcomes = {
            (name, seed): self._one(place, name, seed, members)
            for place, (name, seed) in enumerate(product(self.study.methods, self.study.seeds))
        }
        first = self._job(*next(iter(outcomes)), members)
        decided = {key: getattr(first.training, key) for key in ("by", "positive", "batch_size")}
        judged = replace(self.study.training, **decided)
        study = replace(self.study, model=dict(first.model), training=judged)
        sizes = {name: each.sizes[2] for name, each in self.gathering.everyone().items()}
        trained = {name: each.sizes[0] for name, each in members.items()}
        facts = Facts(dict.fromkeys(members, 0), sizes, trained=trained)
        seconds = time.time() - self.gathering.began()
        finished = collected(study, self.folder, outcomes, dict.fromkeys(study.seeds, facts), CPU, seconds)
        asked = self.study.training.by == AUTO
        finished.summary["data"] = _about(members, self.gathering.differences(), asked)
        if self.tuning:
            finished.summary["tuning"] = {"rounds": self.tuning}
        write(finished, self.folder, command)
        self._report(state="finished")
        return finished

    def tuned(self, members: dict[str, Declaration]) -> Study:
        """The study with a value wherever it was `auto`; all that was tried is written to the run's folder."""
        fixed = self.study.fixed()
        if self.study.auto and not any(each.sizes[1] for each in members.values()):
            warn("auto: no silo has validation data to search by; taking fixed values for rounds, lr and optimizer")
            return fixed

        def find(label: str, keys: tuple[str, ...]) -> tuple[dict[str, Any], pd.DataFrame]:
            if label not in self.tuning:
                warn(f"{label}: {NOT_TUNED}")
                return fixed.own.get(label, {}), pd.DataFrame(columns=COLUMNS)
            job = self._job(label, self.study.seeds[0], members)
            search = RemoteSearch(self.folder, [*self.study.methods].index(label), job, self._engine)
            self._report(method=label, seed=job.seed, round=0, rounds=search_rounds(job.training, keys), score=None)
            try:
                return search.find(keys, lambda progress: self._report(round=progress.round))
            except BadInput as error:
                raise BadInput(f"[methods.{label}] {error}") from None

        study, tried = searched(self.study, find)
        if len(tried):
            tried.to_parquet(self.folder / TUNING, index=False)
        return study

    def _engine(self, job: Job, more: str = "") -> Remote:
        method, model, _ = job.built()
        run = f"{self.folder.name}-{job.method}-{job.seed}{more}"
        return Remote(run, job, method, model, self.transport, self.patience, self._report)

    def _one(self, place: int, name: str, seed: int, members: dict[str, Declaration]) -> Outcome:
        """One method on one seed, from its checkpoint on."""
        checkpoint = Checkpoint(checkpoint_folder(self.folder, place, name, seed), name, seed, every=1)
        outcome = checkpoint.ended()
        if outcome is not None:
            return outcome
        job = self._job(name, seed, members)
        engine = self._engine(job)
        method, model = engine.method, engine.model
        self._report(method=name, seed=seed, round=0, rounds=job.training.rounds, score=None)

        def on_round(progress: Progress) -> None:
            self._report(state="training", round=progress.round, silos=engine.last, **_score(progress))

        try:
            outcome = run_rounds(method, engine, job.roster(model.device), model, job.training, on_round, checkpoint)
        except BadInput as error:
            raise BadInput(f"[methods.{name}] {error}") from None
        outcome.temperatures = engine.temperatures
        if engine.tempered is not None and outcome.picked is not None:
            outcome.results.append(as_table(engine.tempered, outcome.picked.round))
        if outcome.kept:
            why = {silo: f"keeps its model of round {round}" for silo, round in outcome.kept.items() if round}
            self._report(state="models missing or of another round", silos=engine.last | why)
        for newcomer, declared in self.gathering.newcomers().items():
            found = engine.take_in(newcomer, declared, outcome.server, job.training.measure)
            if found is not None:
                table = as_table(found, job.training.rounds)
                outcome.results.append(table.assign(measure=table["measure"] + "_unseen"))
        outcome.bytes_up += engine.beside["bytes_up"]
        outcome.bytes_down += engine.beside["bytes_down"]
        checkpoint.end(outcome, server=True)  # silos may arrive later still
        return outcome

    def _job(self, name: str, seed: int, members: dict[str, Declaration]) -> Job:
        first, schema = next(iter(members.values())), self.gathering.schema()
        classes = max(each.classes for each in members.values())
        outputs = classes or first.outputs
        sizes = [each.sizes[0] for each in members.values()]
        job = Job(
            method=name,
            options=written(name, self.study.methods[name]),
            model=build(self.study.model, first.sample, outputs, float(np.median(sizes)))[1],
            train=resolved(suited(self.study.training_of(name), classes, _counts(members), sizes)),
            seed=seed,
            shape=first.sample,
            classes=classes,
            outputs=outputs,
            names=tuple(members),
            sizes=tuple(sizes),
            validation=tuple(each.sizes[1] for each in members.values()),
            study=self.study.name,
            schema={} if schema is None else schema.as_table(),
            tuning=self.tuning.get(name, 0),
        )
        job = replace(job, plugins=job.brought())
        return replace(job, base=job.built()[1].base_checksum)

    def _report(self, **news: Any) -> None:
        """Write how far the run is to `progress.json`."""
        before = progress(self.folder)
        news |= {name: before.get(name, 0) + news[name] for name in TOTALS if name in news}
        rejected = Counter(news.pop("rejected", []))
        news["rejected"] = before.get("rejected", 0) + rejected.total()
        news["rejected_by_silo"] = Counter(before.get("rejected_by_silo", {})) + rejected
        note_progress(self.folder, **news)


def _counts(members: Mapping[str, Declaration]) -> list[float] | None:
    """The training rows of each of two classes; None where they are not two, or a silo does not declare its shares."""
    shares = [[share * each.sizes[0] / 100 for share in each.shares] for each in members.values()]
    known = all(len(each) == 2 for each in shares) and max(each.classes for each in members.values()) == 2
    return [sum(column) for column in zip(*shares, strict=True)] if known else None


def _about(members: Mapping[str, Declaration], differences: list[dict[str, Any]], by_labels: bool) -> dict[str, Any]:
    """What a summary has of the silos' data; `by_labels`: whether these were to choose the measure."""
    classes = max(each.classes for each in members.values())
    what = f"{classes} classes" if classes else "numbers to predict"
    kept = [name for name, each in members.items() if classes == 2 and by_labels and len(each.shares) != 2]
    withheld = [
        asdict(Difference("label", name, "keeps the shares of its classes to itself: judged by accuracy"))
        for name in kept
    ]
    return {"note": f"{len(members)} silos, each with its own data; {what}", "differences": differences + withheld}


def _score(progress: Progress) -> dict[str, Any]:
    """The latest score as `progress.json` has it."""
    accuracy = {"accuracy": progress.score} if progress.measure == "accuracy" else {}
    return {"score": progress.score, "measure": progress.measure, **accuracy}


def study_of(table: dict[str, Any], methods: list[str] | None = None, tune: bool = True) -> Study:
    """A study's table as one between real silos: whatever data it names, each silo brings its own."""
    study = check({key: value for key, value in table.items() if key != "data"}, methods)
    study = study if tune else study.fixed()
    machine = replace(study.machine, device="cpu", rows=1)
    training = replace(study.training, drop=0.0, unseen=0.0)  # who is missing, or late, really is
    # The coordinator's clock knows nothing of how long a seed takes the silos: `auto` is one.
    return replace(study, data=dict(OWN_DATA), machine=machine, training=training, auto_seeds=False)
