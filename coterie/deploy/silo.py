"""The silo's side: one request in, one answer out, by the very code that a simulation runs on all its rows."""

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.codec import decode, encode_up
from coterie.data.own.schema import Schema
from coterie.data.own.statistics import Statistics
from coterie.data.silo import Silo
from coterie.deploy.approval import Approvals
from coterie.deploy.budget import Budget
from coterie.deploy.encoded import Encoded, encoded_silo, facts_of
from coterie.deploy.examination import probe
from coterie.deploy.home import EVENTS, owner_only
from coterie.deploy.ledger import Ledger
from coterie.deploy.logs import append
from coterie.deploy.messages import LONGEST_REFUSAL, Answer, Declared, Done, Job, Measured, Request, Scored
from coterie.deploy.operators import judged_operator
from coterie.deploy.own import Raw, SiloSource, own_silo
from coterie.deploy.policy import Policy, Refused, judge_schema, read_policy
from coterie.deploy.vault import Vault, is_reserved
from coterie.engine.kept import keep_features
from coterie.engine.measuring import measured, worth
from coterie.engine.method import Method, Model, Roster, local_round
from coterie.engine.store import Store, of_round
from coterie.engine.task import Task, task_of
from coterie.engine.training import Training
from coterie.errors import BadInput, plain
from coterie.lock import locked
from coterie.measure.measures import AUTO, PACKAGED, Array, measure_of
from coterie.measure.paired import interval
from coterie.measure.predictions import RAW, Rows
from coterie.measure.tempering import can_calibrate, curve, cut_of, moved, pooled_curve, temperature, tempered
from coterie.methods.stack import Stack
from coterie.methods.wrappers.blind import WithBlind
from coterie.methods.wrappers.candidates import Candidates
from coterie.methods.wrappers.secagg import Question, Revealed, WithSecAgg
from coterie.methods.wrappers.spent import privacy_of
from coterie.personal.export import save_models
from coterie.run.assembly import pick_device
from coterie.run.baselines import rows_of
from coterie.run.tuning import validation_loss
from coterie.secure.masks import subkey
from coterie.wire import Down, Up


class SiloSide:
    """One silo: its folder (policy, ledger, private state, models) and its data."""

    def __init__(self, name: str, folder: Path, source: SiloSource, device: str = "auto") -> None:
        self.name, self.folder, self.source, self.device = name, folder, source, device

    @owner_only()
    def answer(self, request: Request) -> Answer:
        """Answer a request once; a refusal gives the reason, and no bytes leave."""
        with locked(self.folder / ".lock"):  # the process of the message before may still be ending
            try:
                policy = read_policy(self.folder)
                operator = self._judge(request, policy)
                vault = Vault(self.folder / "state", request.run + (".newcomer" if request.newcomer else ""))
                digest = request.digest()
                body = vault.answered(request.kind, digest)
                if body is not None:
                    return Answer(body, to=digest)
                budget = Budget(self.folder, policy, cache(lambda: self._samples(request.job, policy)))
                budget.judge(request)
                # A newcomer's run has a folder, too, where its models are hidden.
                with vault.unless_refused(), Vault(self.folder / "state", request.run).unless_refused():
                    up, expected = self._computed(request, vault, policy)
                    if type(up) is not expected:
                        raise Refused(f"a {type(up).__name__} may not leave, only a {expected.__name__}")
                    policy.judge_upload(up)
                    body = encode_up(up)
                    budget.spend(request, up)
                    if request.job is not None and policy.approve == "each":
                        Approvals(self.folder).count(request.job, request.run)
                    # First of all: nothing leaves that is not written down.
                    if Ledger(self.folder).record(request, up, operator):
                        self.note("half a line was cut from the ledger's end: what it was to record never left")
                    vault.answer(request.kind, digest, body)
            except (Refused, BadInput) as error:
                self.note(f"refused {request.kind} of run {request.run}, round {request.round + 1}: {error}")
                reason = error.public if isinstance(error, BadInput) else str(error)
                return Answer(refusal=reason.replace(f"{self.folder}/", ""))  # where it lies is nobody else's business
            self.note(f"answered {request.kind} of run {request.run}, round {request.round + 1}: {len(body)} bytes")
            return Answer(body, to=digest)

    def note(self, what: str) -> None:
        """Write a line for whoever looks after this silo."""
        append(self.folder / EVENTS, plain(what, LONGEST_REFUSAL))

    def _judge(self, request: Request, policy: Policy) -> str:
        """Refuse what the policy does not allow; the operator who started the run, where one is verified."""
        if request.silo != self.name:
            raise Refused(f"a request for silo '{request.silo}' reached '{self.name}'")
        if is_reserved(request.run):
            raise Refused(f"a run named '{request.run}': this silo keeps something else under that name")
        if request.newcomer and request.kind in ("train", "confirm"):  # its vault knows of no sum that was opened
            raise Refused(f"{request.kind}: not of a newcomer, who takes part in no round")
        if request.kind == "adapt" and not request.newcomer:  # a member's state would be lost, and no cohort counted
            raise Refused("adapt: of a newcomer alone")
        operator = judged_operator(self.folder, request)
        policy.judge(request)
        if request.job is not None:
            self._judge_approval(request, policy)
        return operator

    def _judge_approval(self, request: Request, policy: Policy) -> None:
        if policy.approve == "each":
            Approvals(self.folder).judge(request.jobs, request.run, policy.runs, request.job is None)

    @torch.no_grad()
    def _computed(self, request: Request, vault: Vault, policy: Policy) -> tuple[Up, type[Up]]:
        source = self._source(policy)
        if request.kind == "propose":
            if policy.approve == "each":
                self._judge_fit(request.proposed, source, policy)
                self._judge_approval(request, policy)
            for each in request.proposed:
                self._data(each, source, policy)
            return Done(), Done
        if request.job is None:
            if request.kind == "describe":
                raw = Raw(self.name, source)
                for remark in raw.remarks():
                    self.note(remark)
                return raw.statistics(), Statistics
            own = declared(self.name, source)
            withheld = not policy.statistics or (policy.fields and "shares" not in policy.fields)
            return own.replace(shares=None) if withheld else own, Declared
        job = request.job
        if job.rates:
            _check_search(request.kind, job)
        data = self._data(job, source, policy)
        method, model, roster = job.built(pick_device(self.device), self.folder / "weights")
        if model.base_checksum != job.base:
            ours, theirs = (each[:12] or "none" for each in (model.base_checksum, plain(job.base, 64)))
            raise BadInput(f"the run's frozen base is {theirs}, this silo's {ours}; bring the same weights")
        counted = policy.demanded != "none" or privacy_of(method) is not None
        if counted and (reason := method.refusal(roster, model)):
            raise Refused(reason)
        store = Store([data.silo], model.device, model.dtype)
        probe(self.folder, job, model, store["train"].x[:2])
        model, store = keep_features(model, store, job.training.keep_features)
        round = job.training.rounds - 1 if request.newcomer else request.round
        secret = f"{self._secret()},{request.run},{request.kind}"
        silos = torch.zeros(1, dtype=torch.int64, device=model.device)
        task = task_of(job.training, model, store, silos, round, job.seed, secret=secret)
        task = self._with_secrets(task, job, request.run)
        if request.kind == "confirm":
            return self._confirmed(method, task, roster, request, vault, policy), Revealed
        template = self._template(method, model, roster, store, request.newcomer)
        if request.kind == "adapt" and request.round == 0:
            vault.clear()
        vault.settle(request.received, request.round)
        axes = method.axes(roster, model)
        known = {axis: size for axis, size in axes.items() if not request.newcomer or axis not in ("N", "m")}
        down: Any = decode(method.down, request.body, model.dtype, rows=1, **known)
        if request.kind == "train" and task.pair is not None:
            task = replace(task, context=_context(request, down))
            vault.ask(request.round, task.context)
        down = down.map(lambda t: t.to(model.device))
        if request.kind == "train" and isinstance(method, WithSecAgg):
            policy.judge_sum(len(down.peers))
        if request.kind == "adapt":
            before = None if request.round == 0 else vault.load(template).map(lambda t: t.to(model.device))
            up, kept = method.adapt(task, down, before)
            vault.keep(kept, request.round)
            return (Done(), Done) if up is None else (up, method.up)
        private: Any = vault.load(template).map(lambda t: t.to(model.device))
        if request.kind == "train":
            up, kept = local_round(method, task, down, private)
            vault.keep(kept, request.round)
            return up, method.up
        if isinstance(method, Candidates):
            losses = [-validation_loss(*each) for each in method.personals(task, down, private)]
            return Scored(loss=torch.stack(losses, 1).double().cpu()), Scored
        if request.kind == "measure":
            personal = method.personal(task, down, private)
            values, outputs = measured(task, personal, method.cloud(task, down, private), request.splits, job.training)
            place = of_round(self.name, len(data.silo.train), job.training.round_samples, job.seed, round)
            taken_part = replace(data, silo=replace(data.silo, train=data.silo.train.take(place)))
            further = _by_all_measures(taken_part, outputs, job.training)
            # What is more than asked for stays where the policy does not name it.
            allowed = read_policy(self.folder).fields
            values |= {key: each for key, each in further.items() if not allowed or key[1] in allowed}
            if policy.demanded != "none":  # a measure has no noise, which rows that are trained on need
                values |= {key: torch.full_like(each, math.nan) for key, each in values.items() if key[0] == "train"}
            if request.hold:
                vault.hold(personal, request.hold)
            return as_measured(values, request.splits), Measured
        held = vault.held(request.hold[-1]) if request.hold else None
        round, kept = held or (job.training.rounds, method.personal(task, down, private))
        about = {"method": job.method, "study": job.study, "round": round, "seed": job.seed}
        about |= {"run": request.run, "model": dict(job.model), "shape": list(job.shape), "outputs": job.outputs}
        about |= method.about(policy.incumbent) if isinstance(method, Stack) else {}
        folder = self.folder / "models" / vault.folder.name
        schemas = None if data.schema is None else {self.name: data.schema}
        outputs = {split: worth(task, kept, split)[1] for split in ("validation", "test")}
        by_temperature, fitted = _calibrated(
            data.silo, outputs["validation"].get(self.name), job.training, request.pooled
        )
        trees = {self.name: data.silo.trees}
        save_models(folder, model, kept, [self.name], about, schemas, {self.name: fitted}, trees=trees)
        done = {"round": torch.tensor([round]), "curve": torch.from_numpy(by_temperature)[None]}
        if fitted:
            done["tempered"] = _tempered(_rows(data, outputs), fitted["temperature"])
        named = read_policy(self.folder).fields
        return Done(**{key: each for key, each in done.items() if each.numel() and (not named or key in named)}), Done

    def _source(self, policy: Policy) -> SiloSource:
        return replace(self.source, standardize=not policy.statistics, incumbent=policy.incumbent)

    def _samples(self, job: Job | None, policy: Policy) -> int:
        return 0 if job is None else len(self._data(job, self._source(policy), policy).silo.train)

    def _with_secrets(self, task: Task, job: Job, run: str) -> Task:
        """The task with what this silo shares with the others of a run, where the server is not to see uploads."""
        method = job.made()
        if isinstance(method, WithBlind | WithSecAgg):
            Vault(self.folder / "state", run).pin(job.digest())
        if isinstance(method, WithBlind):
            from coterie.deploy.group import group_of

            return replace(task, group=subkey(group_of(self.folder, run), "job", job.digest()))
        if isinstance(method, WithSecAgg):
            from coterie.deploy.group import pair_of

            return replace(task, pair=pair_of(self.folder, self.name, run), members=job.names)
        return task

    def _confirmed(
        self, method: Method, task: Task, roster: Roster, request: Request, vault: Vault, policy: Policy
    ) -> Up:
        """Shares for the sum of a round; for one set of uploads alone, since two would show single ones."""
        question = decode(Question, request.body, rows=1, N=len(roster))
        policy.judge_sum(int(question.counted.sum()))
        task = replace(task, context=vault.asked(request.round))
        vault.confirm(task.round, hashlib.sha256(request.body).hexdigest())
        return method.confirmed(task, question.map(lambda t: t.to(task.model.device)))

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

    def _judge_fit(self, jobs: Sequence[Job], source: SiloSource, policy: Policy) -> None:
        """Refuse studies that do not fit this silo's data, of which it encodes nothing for that."""
        for job in jobs:
            _check_kind(job, source)
        facts = facts_of(self.folder, self.name, source)
        for job in jobs:
            if facts.columns is None:
                _check_arrays(job, facts.shape, facts.classes)
            else:
                judge_schema(Schema.read(job.schema, "the run's schema"), facts.columns)
            policy.judge_steps(job.made(), job.training, facts.rows)

    def _data(self, job: Job, source: SiloSource, policy: Policy) -> Encoded:
        """This silo's samples as the run's model takes them."""
        _check_kind(job, source)
        found = encoded_silo(self.folder, self.name, source, job.schema)
        if found.schema is None:
            _check_arrays(job, found.silo.train.x.shape[1:], found.classes)
        policy.judge_steps(job.made(), job.training, len(found.silo.train))
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


def _check_kind(job: Job, source: SiloSource) -> None:
    """Refuse a run of arrays where a silo has a table or pictures, and the other way round."""
    if bool(job.schema) == source.archive:
        here, there = ("arrays", "tables or pictures") if source.archive else ("a table or pictures", "arrays")
        raise BadInput(f"this silo holds {here}, the run's silos {there}")


def _check_arrays(job: Job, shape: Sequence[int], classes: int) -> None:
    """Refuse a run whose model does not take this silo's arrays."""
    if tuple(shape) != tuple(job.shape) or classes > max(job.classes, 0):
        raise BadInput(
            f"this silo's samples are {tuple(shape)} with labels below {classes}, "
            f"the run's {tuple(job.shape)} with labels below {job.classes}"
        )


def _context(request: Request, down: Down) -> bytes:
    """A digest of what a silo is asked to train; where all fields are shared, that of any other silo of the round."""
    assert request.job is not None
    total = hashlib.sha256(f"{request.job.digest()} {request.newcomer}\n".encode())
    for name, tensor in sorted(down.tensors().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.digest()


def _check_search(kind: str, job: Job) -> None:
    """Refuse what no search asks, and a search that would spend privacy which nobody counts, or that nobody sums."""
    if kind not in ("train", "measure"):
        raise BadInput(f"{kind}: nothing is kept of a search")
    if privacy_of(job.made()) is not None:
        raise BadInput("a search with privacy: every candidate's upload would spend some of it; give lr a value")
    if isinstance(job.made(), WithSecAgg):
        raise BadInput("a search with secagg: its candidates would leave under one mask; give lr a value")


def declared(name: str, source: SiloSource) -> Declared:
    """What a silo declares; the shape of a sample is not known before all silos agree on a table's columns."""
    names: Sequence[object] = ()  # of its classes
    if source.archive:
        silo, classes = own_silo(name, source.path)
        sizes = [len(silo.train), len(silo.validation), len(silo.test)]
        shape, outputs = silo.train.x.shape[1:], classes or math.prod(silo.train.y.shape[1:])
        labels, names = silo.train.y, range(2) if 0 < classes <= 2 and silo.train.y.ndim == 1 else ()
    else:
        own = Raw(name, source).split
        sizes, shape, classes, outputs = [len(own.train), len(own.validation), len(own.test)], (), 0, 0
        labels, names = own.label.names()[own.train], own.label.levels(source.task) or ()
    return Declared(
        sizes=torch.tensor([sizes]),
        sample=torch.tensor(shape, dtype=torch.int64)[None],
        classes=torch.tensor([classes]),
        outputs=torch.tensor([outputs]),
        shares=_shares(labels, names) if 0 < len(names) <= 2 else None,
    )


def _shares(labels: Array, names: Sequence[object]) -> Tensor:
    """The share of labels in each class, in hundredths: which class is rare over all silos needs no more."""
    return torch.tensor([[round(100 * float(np.mean(labels == name))) for name in names]])


def _by_all_measures(
    data: Encoded, outputs: Mapping[str, Mapping[str, Array]], training: Training
) -> dict[tuple[str, str], Tensor]:
    """What a silo reports beside its losses: every measure of its rows, and the standard error of the study's own."""
    found = dict[tuple[str, str], float]()
    validation = data.silo.validation.y, outputs.get("validation", {}).get(data.silo.name)
    cut = cut_of(*validation, training.positive) or 0.5
    for split, rows in _rows(data, outputs).items():
        rows = replace(rows, threshold=cut).seen_from(training.positive)
        by = training.by if training.by != AUTO else "accuracy" if rows.classes else "rmse"
        taken = rows.measured()
        found |= {(split, name): value for name, value in taken.items() if name in PACKAGED}
        if taken:
            own = interval(measure_of(by), [rows.scored(measure_of(by))])
            found[split, "error"] = own.error if np.isfinite(own.error) else np.nan
            if by not in PACKAGED:
                found[split, "judged"] = own.value
    return {key: torch.tensor([value], dtype=torch.float64) for key, value in found.items()}


def _rows(data: Encoded, outputs: Mapping[str, Mapping[str, Array]]) -> dict[str, Rows]:
    """By split a silo's rows, and what its model gives for them."""
    given = {split: by_silo[data.silo.name] for split, by_silo in outputs.items() if data.silo.name in by_silo}
    return {split: rows_of(0, getattr(data.silo, split), each, data.schema) for split, each in given.items()}


def _calibrated(
    silo: Silo, given: Array | None, training: Training, pooled: Sequence[float]
) -> tuple[Array, dict[str, float]]:
    """By its own validation rows: their log-loss by temperature, and the temperature and threshold of a kept model.

    Nothing where it has none, or no classes. `pooled` is what all silos together know of the temperature; without it,
    only this one's rows count.
    """
    y = silo.validation.y
    if given is None or not can_calibrate(y, given):
        return np.zeros(0), {}
    own = curve(y, given)
    at = temperature(own, np.asarray(pooled) if pooled else pooled_curve([own], len(y)))
    cut = cut_of(y, given, training.positive)
    cuts = {} if cut is None else {"threshold": moved(cut, at), "positive": int(training.positive != 0)}
    return own, {"temperature": at, **cuts}


def _tempered(rows: Mapping[str, Rows], temperature: float) -> Tensor:
    """What tempering moves, of the model that a silo keeps: (1, 6), NaN where a split has no rows."""
    found = list[float]()
    for split in ("validation", "test"):
        fits = split in rows and np.isfinite(rows[split].predicted).all()
        made = replace(rows[split], predicted=tempered(rows[split].predicted, temperature)) if fits else None
        found += [np.nan if made is None else made.measured()[name] for name in RAW]
    return torch.tensor([found], dtype=torch.float64)


def as_measured(values: Mapping[tuple[str, str], Tensor], splits: tuple[str, ...]) -> Measured:
    """What one silo's models are worth, as it may leave; a split without samples is NaN."""
    made: dict[str, Tensor] = {}
    known = {f.name for f in fields(Measured)}  # what a plug-in brings goes as the measure that the study goes by
    for (split, name), value in ((key, value) for key, value in values.items() if key[1] in known):
        empty = torch.full((1, len(splits)), torch.nan, dtype=torch.float64)
        made.setdefault(name, empty)[:, splits.index(split)] = value.cpu()
    return Measured(**made)
