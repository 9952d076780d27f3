"""The silo's side: one request in, one answer out, by the very code that a simulation runs on all its rows."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.codec import decode, encode_up
from coterie.data.own.statistics import Statistics
from coterie.data.silo import Silo
from coterie.deploy.encoded import Encoded, encoded_silo
from coterie.deploy.home import EVENTS, owner_only
from coterie.deploy.ledger import Ledger
from coterie.deploy.messages import LONGEST_REFUSAL, Answer, Declared, Done, Job, Measured, Request
from coterie.deploy.own import Raw, SiloSource, own_silo
from coterie.deploy.policy import Refused, read_policy
from coterie.deploy.vault import Vault
from coterie.engine.method import Method, Model, Roster
from coterie.engine.store import Store
from coterie.engine.task import measured, task_of
from coterie.engine.training import Training
from coterie.errors import BadInput, plain
from coterie.lock import locked
from coterie.measure.measures import AUTO, PACKAGED, Array, best_threshold, measure_of, oriented, taken
from coterie.measure.paired import interval, scored
from coterie.measure.tempering import curve, temperatures, tempered
from coterie.personal.export import save_models
from coterie.run.assembly import pick_device
from coterie.wire import Up


class SiloSide:
    """One silo: its folder (policy, ledger, private state, models) and its data."""

    def __init__(self, name: str, folder: Path, source: SiloSource, device: str = "auto") -> None:
        self.name, self.folder, self.source, self.device = name, folder, source, device

    @owner_only()
    def answer(self, request: Request) -> Answer:
        """Answer a request once; a refusal gives the reason, and no bytes leave."""
        with locked(self.folder / ".lock"):  # the process of the message before may still be ending
            try:
                self._judge(request)
                vault = self._vault(request)
                digest = request.digest()
                body = vault.answered(request.kind, digest)
                if body is not None:
                    return Answer(body, to=digest)
                up, expected = self._computed(request, vault)
                if type(up) is not expected:
                    raise Refused(f"a {type(up).__name__} may not leave, only a {expected.__name__}")
                read_policy(self.folder).judge_upload(up)
                body = encode_up(up)
                if Ledger(self.folder).record(request, up):  # first: nothing leaves that is not written down
                    self.note("half a line was cut from the ledger's end: what it was to record never left")
                vault.answer(request.kind, digest, body)
            except (Refused, BadInput) as error:
                self.note(f"refused {request.kind} of run {request.run}, round {request.round + 1}: {error}")
                return Answer(refusal=error.public if isinstance(error, BadInput) else str(error))
            self.note(f"answered {request.kind} of run {request.run}, round {request.round + 1}: {len(body)} bytes")
            return Answer(body, to=digest)

    def note(self, what: str) -> None:
        """Write a line for whoever looks after this silo."""
        with (self.folder / EVENTS).open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {plain(what, LONGEST_REFUSAL)}\n")

    def _judge(self, request: Request) -> None:
        if request.silo != self.name:
            raise Refused(f"a request for silo '{request.silo}' reached '{self.name}'")
        read_policy(self.folder).judge(request)

    def _vault(self, request: Request) -> Vault:
        return Vault(self.folder / "state", request.run + (".newcomer" if request.newcomer else ""))

    @torch.no_grad()
    def _computed(self, request: Request, vault: Vault) -> tuple[Up, type[Up]]:
        policy = read_policy(self.folder)
        source = replace(self.source, standardize=not policy.statistics, incumbent=policy.incumbent)
        if request.job is None:
            if request.kind == "describe":
                raw = Raw(self.name, source)
                for remark in raw.remarks():
                    self.note(remark)
                return raw.statistics(), Statistics
            return declared(self.name, source), Declared
        job = request.job
        data = self._data(job, source)
        method, model, roster = job.built(pick_device(self.device))
        store = Store([data.silo], model.device, model.dtype)
        model.probe(store["train"].x[:2])
        round = job.training.rounds - 1 if request.newcomer else request.round
        secret = f"{self._secret()},{request.run},{request.kind}"
        silos = torch.zeros(1, dtype=torch.int64, device=model.device)
        task = task_of(job.training, model, store, silos, round, job.seed, secret=secret)
        template = self._template(method, model, roster, store, request.newcomer)
        if request.kind == "adapt" and request.round == 0:
            vault.clear()
        vault.settle(request.received, request.round)
        axes = method.axes(roster, model)
        known = {axis: size for axis, size in axes.items() if not request.newcomer or axis not in ("N", "m")}
        down = decode(method.down, request.body, model.dtype, rows=1, **known)
        down = down.map(lambda t: t.to(model.device))
        if request.kind == "adapt":
            before = None if request.round == 0 else vault.load(template).map(lambda t: t.to(model.device))
            up, kept = method.adapt(task, down, before)
            vault.keep(kept, request.round)
            return (Done(), Done) if up is None else (up, method.up)
        private: Any = vault.load(template).map(lambda t: t.to(model.device))
        if request.kind == "train":
            state = task.run(method.step, method.begin(task, down, private), "train")
            up, kept = method.end(task, state, down, private)
            vault.keep(kept, request.round)
            return up, method.up
        if request.kind == "measure":
            personal = method.personal(task, down, private)
            values, outputs = measured(task, personal, method.cloud(task, down, private), request.splits, job.training)
            further = _by_all_measures(data.silo, outputs, model, job.training)
            allowed = read_policy(
                self.folder
            ).fields  # what is more than asked for stays where the policy does not name it
            values |= {key: each for key, each in further.items() if not allowed or key[1] in allowed}
            if request.hold:
                vault.hold(personal, request.hold)
            return as_measured(values, request.splits), Measured
        held = vault.held(request.hold[-1]) if request.hold else None
        round, kept = held or (job.training.rounds, method.personal(task, down, private))
        about = {"method": job.method, "study": job.study, "round": round, "seed": job.seed}
        about |= {"run": request.run, "model": dict(job.model), "shape": list(job.shape), "outputs": job.outputs}
        folder = self.folder / "models" / vault.folder.name
        schemas = None if data.schema is None else {self.name: data.schema}
        fitted = _calibrated(data.silo, task.judged(kept, "validation")[1], job.training)
        trees = {self.name: data.silo.trees}
        save_models(folder, model, kept, [self.name], about, schemas, {self.name: fitted}, trees)
        fields = read_policy(self.folder).fields
        return Done(round=torch.tensor([round]) if not fields or "round" in fields else None), Done

    def _secret(self) -> str:
        """What the noise that hides this silo's data is drawn from; made once, and never sent to anybody."""
        path = self.folder / "state" / "secret"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name("secret.part")
            beside.touch(mode=0o600)  # nobody else may read it, not even for a moment
            beside.write_text(secrets.token_hex(32), "ascii")
            beside.replace(path)
        return path.read_text("ascii")

    def _data(self, job: Job, source: SiloSource) -> Encoded:
        """This silo's samples as the run's model takes them."""
        if bool(job.schema) == source.archive:
            here, there = ("arrays", "tables or pictures") if source.archive else ("a table or pictures", "arrays")
            raise BadInput(f"this silo holds {here}, the run's silos {there}")
        found = encoded_silo(self.folder, self.name, source, job.schema)
        shape, classes = found.silo.train.x.shape[1:], found.classes
        if found.schema is None and (tuple(shape) != tuple(job.shape) or classes > max(job.classes, 0)):
            raise BadInput(
                f"this silo's samples are {shape} with labels below {classes}, "
                f"the run's {tuple(job.shape)} with labels below {job.classes}"
            )
        return found

    def _template(self, method: Method, model: Model, roster: Roster, store: Store, newcomer: bool) -> Any:
        """What this silo keeps before its first round; of a newcomer only its type matters."""
        if newcomer:
            train, validation = (torch.from_numpy(store[s].count).to(model.device) for s in ("train", "validation"))
            roster = Roster((self.name,), train, validation, roster.seed)
        elif self.name not in roster.names:
            raise BadInput(f"'{self.name}' is not among the members of this run: {', '.join(roster.names)}")
        place = torch.tensor([roster.names.index(self.name)], device=model.device)
        return method.enroll(roster, model, place)


def declared(name: str, source: SiloSource) -> Declared:
    """What a silo declares; the shape of a sample is not known before all silos agree on a table's columns."""
    if source.archive:
        silo, classes = own_silo(name, source.path)
        sizes = [len(silo.train), len(silo.validation), len(silo.test)]
        shape, outputs = silo.train.x.shape[1:], classes or math.prod(silo.train.y.shape[1:])
    else:
        own = Raw(name, source).split
        sizes, shape, classes, outputs = [len(own.train), len(own.validation), len(own.test)], (), 0, 0
    return Declared(
        sizes=torch.tensor([sizes]),
        sample=torch.tensor(shape, dtype=torch.int64)[None],
        classes=torch.tensor([classes]),
        outputs=torch.tensor([outputs]),
    )


def _by_all_measures(
    silo: Silo, outputs: Mapping[str, Mapping[str, Array]], model: Model, training: Training
) -> dict[tuple[str, str], Tensor]:
    """What a silo reports beside its losses: every measure of its rows, and the standard error of the study's own."""
    found = dict[tuple[str, str], float]()
    by = training.by if training.by != AUTO else "accuracy" if model.classes else "rmse"
    for split, by_silo in outputs.items():
        part, given = getattr(silo, split), by_silo.get(silo.name)
        if given is None or part.y.ndim > 1 or not np.isfinite(given).all():
            continue
        y, p = oriented(part.y, given, training.positive) if model.classes else (part.y * model.unit, given)
        found |= {(split, name): value for name, value in taken(y, p, model.classes).items() if name in PACKAGED}
        own = interval(measure_of(by), [scored(measure_of(by), y, p, part.units)])
        found[split, "error"] = own.error if np.isfinite(own.error) else np.nan
        if by not in PACKAGED:
            found[split, "judged"] = own.value
    return {key: torch.tensor([value], dtype=torch.float64) for key, value in found.items()}


def _calibrated(silo: Silo, outputs: Mapping[str, Array], training: Training) -> dict[str, float]:
    """The temperature and, of two classes, the threshold of the model that a silo keeps, by its own validation rows."""
    p, y = outputs.get(silo.name), silo.validation.y
    if p is None or p.ndim != 2 or y.ndim > 1 or not np.isfinite(p).all():
        return {}
    temperature = temperatures({silo.name: curve(y, p)}, {silo.name: len(y)})[silo.name]
    if p.shape[1] != 2:
        return {"temperature": temperature}
    threshold = best_threshold(*oriented(y, tempered(p, temperature), training.positive))
    return {"temperature": temperature, "threshold": threshold}


def as_measured(values: Mapping[tuple[str, str], Tensor], splits: tuple[str, ...]) -> Measured:
    """What one silo's models are worth, as it may leave; a split without samples is NaN."""
    made: dict[str, Tensor] = {}
    known = {f.name for f in fields(Measured)}  # what a plug-in brings goes as the measure that the study goes by
    for (split, name), value in ((key, value) for key, value in values.items() if key[1] in known):
        empty = torch.full((1, len(splits)), torch.nan, dtype=torch.float64)
        made.setdefault(name, empty)[:, splits.index(split)] = value.cpu()
    return Measured(**made)
