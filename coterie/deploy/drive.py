"""A study between real silos: every method and seed over a transport, resumed where it broke, one folder at the end."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from coterie.deploy.coordinator_checkpoint import COSTS, Checkpoint
from coterie.deploy.gathering import Gathering, Patience
from coterie.deploy.home import write_whole
from coterie.deploy.messages import Job, Transport
from coterie.deploy.remote import Declaration, Remote
from coterie.engine.exchange import Replies, as_table
from coterie.engine.judge import judged
from coterie.engine.method import Cohort, Method, Roster
from coterie.engine.rounds import Outcome, drawn, keep_models, measure, traces
from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.methods import written
from coterie.models import build
from coterie.options import resolved
from coterie.personal.export import file_name
from coterie.run.finished import PREDICTED, Finished, summarized, write
from coterie.runs.folder import COLUMNS
from coterie.study.study import Study, check

OWN_DATA = {"name": "silos"}  # the `[data]` of such a study: each silo has its own
PROGRESS = "progress.json"


@dataclass
class Federated:
    """A run between real silos, as its folder on the coordinator's disk knows it."""

    folder: Path
    study: Study
    transport: Transport
    silos: Callable[[], list[str]]  # those registered by now
    patience: Patience = Patience()

    @property
    def gathering(self) -> Gathering:
        """Who takes part."""
        return Gathering(self.folder, self.transport, self.silos, self.patience, self._tell)

    def run(self, command: str) -> Finished:
        """All methods and seeds; then results, summary and report in the run's folder."""
        members = self.gathering.members()
        results, extras, kept = list[pd.DataFrame](), dict[str, list[dict[str, Any]]](), dict[str, dict[str, Any]]()
        for name in self.study.methods:
            for seed in self.study.seeds:
                outcome = self._one(name, seed, members)
                results.append(pd.concat(outcome.results, ignore_index=True).assign(method=name, seed=seed))
                extras.setdefault(name, []).append(
                    {"seed": seed, **{key: getattr(outcome, key) for key in (*COSTS, "rejected", "kept")}}
                )
                if name not in kept and outcome.traces:
                    about = {"silos": np.array(list(members)), "rounds": np.array(outcome.measured)}
                    kept[name] = {**about, **traces(outcome)}
        whole = pd.concat(results, ignore_index=True)[COLUMNS]
        known = self.gathering.everyone()
        sizes = {seed: {name: each.sizes[2] for name, each in known.items()} for seed in self.study.seeds}
        untold = pd.DataFrame(columns=PREDICTED)  # no silo tells its test samples one by one
        asked = {seed: list(members) for seed in self.study.seeds}
        summary = summarized(self.study, whole, untold, kept, sizes, extras, asked, torch.device("cpu"))
        summary = {"seconds": time.time() - self.gathering.began(), **summary}
        labels = pd.DataFrame(columns=["silo", "label", "count"])  # nor declares how its labels are spread
        study = replace(self.study, model=dict(self._job(name, seed, members).model))
        finished = Finished(study, whole, summary, kept, labels, untold)
        write(finished, self.folder, command)
        self._tell(state="finished")
        return finished

    def _one(self, name: str, seed: int, members: dict[str, Declaration]) -> Outcome:
        """One method on one seed, from its checkpoint on."""
        run = f"{self.folder.name}-{name}-{seed}"
        job = self._job(name, seed, members)
        method, model, roster = job.built()
        reason = method.refusal(roster, model)
        if reason is not None:
            raise BadInput(f"[methods.{name}] {reason}")
        checkpoint = Checkpoint(self.folder / "checkpoints" / f"{file_name(run)}.safetensors")
        outcome = checkpoint.load(method.open(roster, model))
        if checkpoint.finished:
            return outcome
        engine = Remote(run, job, method, model, self.transport, self.patience.reply, received=checkpoint.received)
        checkpoint.received = engine.received
        self._rounds(name, seed, method, engine, roster, model, outcome, checkpoint)
        everyone = torch.arange(len(roster))
        last = Cohort(everyone, job.training.rounds - 1, roster, model)
        keep_models(outcome, method, engine, last)
        if outcome.kept:
            why = {silo: f"keeps its model of round {round}" for silo, round in outcome.kept.items() if round}
            self._tell(state="models missing or of another round", silos=engine.last | why)
        for guest, declared in self.gathering.guests().items():
            found = engine.welcome(guest, declared, outcome.server, job.training.measure)
            if found is not None:
                table = as_table(found, job.training.rounds)
                outcome.results.append(table.assign(measure=table["measure"] + "_unseen"))
        checkpoint.finished = True
        checkpoint.save(outcome)
        return outcome

    def _rounds(
        self,
        name: str,
        seed: int,
        method: Method,
        engine: Remote,
        roster: Roster,
        model: Model,
        outcome: Outcome,
        checkpoint: Checkpoint,
    ) -> None:
        """As `run_rounds` does it, but that a checkpoint is on disk before any silo is told that its reply arrived."""
        training = self.study.training_of(name)
        everyone = torch.arange(len(roster), device=model.device)
        about: dict[str, Any] = {"method": name, "seed": seed, "rounds": training.rounds}
        while True:
            done = checkpoint.done
            if training.measures(done) and done not in outcome.measured:
                self._tell(**about, state="measuring", round=done, silos=engine.last, outcome=outcome)
                measure(outcome, method, engine, Cohort(everyone, max(done - 1, 0), roster, model), training, done)
                checkpoint.save(outcome)
            self._tell(**about, state="training", round=done, silos=engine.last, outcome=outcome)
            if done == training.rounds:
                return
            began = time.perf_counter()
            asked = drawn(roster, everyone, "cohort", done, training.participation, at_least=1)
            cohort = Cohort(asked, done, roster, model)
            down = method.send(outcome.server, cohort)
            replies = self._round(engine, cohort, down)
            replies = judged(method, engine, cohort.ids, down, replies, training.norm_limit, outcome.heard)
            outcome.reject(done, replies)
            if len(replies.cohort.ids):
                outcome.server = method.receive(outcome.server, replies.cohort, replies.up)
            outcome.bytes_up += replies.bytes_up
            outcome.bytes_down += replies.bytes_down
            outcome.missing += len(replies.failures)
            outcome.train_seconds += time.perf_counter() - began
            checkpoint.done = done + 1
            checkpoint.save(outcome)

    def _round(self, engine: Remote, cohort: Cohort, down: Any) -> Replies:
        """One exchange; while no silo at all replies, the round waits for them."""
        until = time.monotonic() + self.patience.silence
        while True:
            replies = engine.train(cohort, down)
            if len(replies.cohort.ids):
                return replies
            if all(why.reason.startswith("refused") for why in replies.failures.values()):
                name, why = next(iter(replies.failures.items()))
                raise BadInput(f"every silo refuses to train; {name} {why.reason}")
            if time.monotonic() > until:
                return replies
            self._tell(state="waiting for silos", silos=engine.last)
            time.sleep(self.patience.pause)

    def _job(self, name: str, seed: int, members: dict[str, Declaration]) -> Job:
        first, schema = next(iter(members.values())), self.gathering.schema()
        classes = max(each.classes for each in members.values())
        outputs = classes or first.outputs
        samples = float(np.median([each.sizes[0] for each in members.values()]))
        job = Job(
            method=name,
            options=written(name, self.study.methods[name]),
            model=build(self.study.model, first.sample, outputs, samples)[1],
            train=resolved(self.study.training_of(name)),
            seed=seed,
            shape=first.sample,
            classes=classes,
            outputs=outputs,
            names=tuple(members),
            sizes=tuple(each.sizes[0] for each in members.values()),
            validation=tuple(each.sizes[1] for each in members.values()),
            study=self.study.name,
            schema={} if schema is None else schema.as_table(),
        )
        return replace(job, plugins=job.brought())

    def _tell(self, outcome: Outcome | None = None, **news: Any) -> None:
        """Leave word of how far the run is, for whoever looks."""
        path = self.folder / PROGRESS
        before = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if outcome is not None and outcome.results:
            table = outcome.results[-1]
            latest = table[(table["split"] == "test") & (table["measure"] == "accuracy")]
            latest = latest[latest["round"] == latest["round"].max()]
            if len(latest):
                news["accuracy"] = float(latest["value"].mean())
        elif outcome is not None:
            before.pop("accuracy", None)  # that of the method before
        write_whole(path, json.dumps(before | news | {"time": time.time()}).encode())


def study_of(table: dict[str, Any], methods: list[str] | None = None) -> Study:
    """A study's table as one between real silos: whatever data it names, each silo brings its own."""
    study = check({key: value for key, value in table.items() if key != "data"}, methods)
    machine = replace(study.machine, device="cpu", rows=1)
    return replace(study, data=dict(OWN_DATA), machine=machine)
