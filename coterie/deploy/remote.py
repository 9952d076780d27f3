"""The server's side: an engine whose silos are elsewhere, behind a transport."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.codec import decode, encode
from coterie.data.arrays import MOST_CLASSES
from coterie.data.own.statistics import Statistics, description_of
from coterie.deploy.messages import (
    AWAITS,
    LARGEST_ANSWER,
    Answer,
    Declared,
    Done,
    Job,
    Lost,
    Measured,
    Request,
    Scored,
    Transport,
)
from coterie.deploy.patience import Patience
from coterie.engine.exchange import Failure, Kept, Measures, Rejected, Replies
from coterie.engine.judge import alike
from coterie.engine.method import Cohort, Method, Roster, settled
from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.measure.measures import LEAST
from coterie.measure.predictions import RAW, TEMPERED
from coterie.measure.tempering import GRID, pooled_curve, temperatures
from coterie.methods.wrappers.secagg import Revealed
from coterie.wire import Down, Up, every_field, stack

T = TypeVar("T")
U = TypeVar("U", bound=Up)
AT_ONCE = Patience(silence=0)  # a round in which nobody replies goes by
SHORTEST, LONGER = 120.0, 10.0  # seconds that a silo gets at least, and how many times as long as the slowest took
REFUSED = "refused: "  # how it begins why a silo that answered did not do what it was asked
MOST_TURNS = 100  # of a silo that arrives after training
MOST_SAMPLES = 10**8  # of a split
MOST_INPUTS = 10**8  # of a sample
GENEROUS = 128  # bytes for each number of an upload
MOST_LOSS = -math.log(LEAST) / float(GRID[0]) + math.log(MOST_CLASSES)  # of a row at the lowest temperature
ROUNDING = 1e-6  # of a measure
POSSIBLE = {"accuracy": (0.0, 1.0), "loss": (0.0, math.inf), "rmse": (0.0, math.inf), "mae": (0.0, math.inf)}
POSSIBLE["r2"] = (-math.inf, 1.0)
POSSIBLE |= dict.fromkeys(("balanced_accuracy", "auroc", "auprc", "f1", "sensitivity", "specificity"), (0.0, 1.0))
POSSIBLE |= dict.fromkeys(("brier", "log_loss", "median_error", "error"), (0.0, math.inf))
POSSIBLE |= {"calibration_error": (0.0, 1.0), "spearman": (-1.0, 1.0)}


@dataclass(frozen=True)
class Declaration:
    """What a silo declared of itself when it joined."""

    sizes: tuple[int, int, int]  # training, validation, test
    sample: tuple[int, ...]
    classes: int
    outputs: int
    shares: tuple[int, ...] = ()  # of training rows in each of two classes, in hundredths; none: not declared


@dataclass(eq=False)
class Remote:
    """An engine whose silos answer over a transport."""

    run: str
    job: Job
    method: Method
    model: Model
    transport: Transport
    patience: Patience = AT_ONCE
    report: Callable[..., None] = lambda **news: None

    def __post_init__(self) -> None:
        self.axes = self.method.axes(self.job.roster(self.model.device), self.model)
        self.received: dict[str, int] = {}  # by silo, the last round of which its reply is here
        self._before: dict[str, int] = {}  # what `received` was before the last exchange
        self.slowest: dict[str, float] = {}  # by kind of request, seconds that the slowest of all silos has taken
        self.pooled: tuple[float, ...] = ()  # what all silos know of the temperature of the models they have kept
        self.temperatures: dict[str, float] = {}  # and what each then took
        self.tempered: Measures | None = None  # what these models are worth, by measures that tempering moves
        self.beside = Counter[str]()  # bytes beside those of training: to measure and keep models, for newcomers
        self.last: dict[str, str] = {}  # by silo, why it did not reply when last asked; "" when it did

    def train(self, cohort: Cohort, down: Any) -> Replies:
        """One exchange; while no silo at all replies, the round waits for them."""
        until = time.monotonic() + self.patience.silence
        while True:
            self.report(state="tuning" if self.job.rates else "training", round=cohort.round, silos=self.last)
            replies = self._train(cohort, down)
            if len(replies.cohort):
                return replies
            if all(why.reason.startswith("refused") for why in replies.failures.values()):
                name, why = next(iter(replies.failures.items()))
                raise BadInput(f"every silo refuses to train; {name} {why.reason}")
            if not self._waits(until):
                return replies

    def _waits(self, until: float) -> bool:
        """Whether there is time left for any silo at all to reply, a pause later."""
        if time.monotonic() > until:
            return False
        self.report(state="waiting for silos", silos=self.last)
        time.sleep(self.patience.pause)
        return True

    def scores(self, cohort: Cohort, down: Any) -> np.ndarray:
        """What the candidates of a search are worth, minus each silo's validation loss: (candidates, k)."""
        until, bodies = time.monotonic() + self.patience.silence, bodies_of(cohort, down)
        blank = Request("measure", "", self.run, cohort.round, cohort=len(cohort), splits=("validation",), job=self.job)
        found, _ = self._ask(blank, bodies, Scored)
        while not found and self._waits(until):
            found, _ = self._ask(blank, bodies, Scored)
        values = np.full((len(self.job.going), len(cohort)), np.nan)
        for place, name in enumerate(cohort.names):
            if name in found:
                values[:, place] = -found[name].loss[0].numpy()
        return values

    def _train(self, cohort: Cohort, down: Any) -> Replies:
        names = cohort.names
        blank = Request("train", "", self.run, cohort.round, cohort=len(names), job=self.job)
        blank = replace(blank, largest=largest_upload(self.method, self.axes))
        found, failures = self._ask(blank, bodies_of(cohort, down), self.method.up)
        self._before = {name: self.received.get(name, -1) for name in names}
        self.received |= {name: cohort.round for name in names if name in found}
        rejected = [name for name, why in failures.items() if isinstance(why, Rejected)]
        return self._replies(cohort, found, failures, down, rejected=rejected)

    def _replies(
        self, cohort: Cohort, found: Mapping[str, Up], failures: Mapping[str, Failure], sent: Any, **news: Any
    ) -> Replies:
        """Those of a cohort whose records came, and what that took; `news` is what else is reported of it."""
        came = [place for place, name in enumerate(cohort.names) if name in found]
        ups = [found[cohort.names[place]].map(lambda t: t.to(self.model.device)) for place in came]
        ids = cohort.ids[torch.tensor(came, dtype=torch.int64, device=cohort.ids.device)]
        size = {"bytes_up": sum(up.nbytes() for up in ups), "bytes_down": sent.each_nbytes(len(cohort))}
        self.report(**size, **news)
        return Replies(replace(cohort, ids=ids), stack(ups) if ups else None, failures, **size)

    def confirm(self, cohort: Cohort, question: Any) -> Replies:
        """A second exchange of a round: what its uploads cannot be taken in without."""
        blank = Request("confirm", "", self.run, cohort.round, cohort=len(cohort), job=self.job)
        found, failures = self._ask(blank, bodies_of(cohort, question), Revealed)
        n = len(question.peers)
        whole = {name: each for name, each in found.items() if each.shares.shape[1:3] == (n, n + 1)}
        return self._replies(cohort, whole, failures, question)

    def settle(self, rejected: Tensor) -> None:
        """A silo learns from its next request that its reply did not arrive, and rolls it back."""
        for silo in rejected.tolist():
            name = self.job.names[silo]
            self.received[name], self.last[name] = self._before[name], "its upload was rejected"
        if len(rejected):
            self.report(rejected=[self.job.names[silo] for silo in rejected.tolist()])

    def measure(self, cohort: Cohort, down: Any, splits: tuple[str, ...], hold: tuple[int, ...] = ()) -> Measures:
        self.report(state="measuring", round=hold[-1] if hold else 0, silos=self.last)
        bodies = bodies_of(cohort, down)
        blank = Request("measure", "", self.run, cohort.round, cohort=len(bodies), splits=splits, job=self.job)
        blank = replace(blank, hold=hold)
        found, _ = self._ask(blank, bodies, Measured)
        return _measures(cohort, splits, found, self.job.training.by)

    def keep_models(self, cohort: Cohort, down: Any, hold: tuple[int, ...]) -> dict[str, int | None]:
        """Have every silo write its model of a round to its own disk; none of them comes here."""
        bodies = bodies_of(cohort, down)
        blank = Request("keep", "", self.run, cohort.round, cohort=len(bodies), hold=hold, job=self.job)
        done, failures = self._ask(blank, bodies, Done)
        rounds = {name: int(each.round[0]) for name, each in done.items() if each.round is not None}
        other: dict[str, int | None] = {name: round for name, round in rounds.items() if hold and round not in hold}
        again = self._temper(blank, {name: bodies[name] for name in done}, done)
        self.tempered = _tempered(cohort, {name: each for name, each in again.items() if name not in other})
        return {**other, **dict.fromkeys(failures)}

    def _temper(self, blank: Request, bodies: Mapping[str, bytes], done: Mapping[str, Done]) -> dict[str, Done]:
        """Have silos temper the models they have kept by what all of them know, as in a simulation."""
        rows = dict(zip(self.job.names, self.job.validation, strict=True))
        curves = {name: each.curve[0].numpy() for name, each in done.items() if each.curve is not None}
        curves = {name: each for name, each in curves.items() if _can_be(each, rows[name])}
        if not curves:
            return dict(done)
        count = sum(rows[name] for name in curves)
        self.pooled = tuple(pooled_curve(curves.values(), count).tolist())
        again, _ = self._ask(replace(blank, pooled=self.pooled), bodies, Done)
        found = temperatures(curves, {name: rows[name] for name in curves})
        self.temperatures = {name: each for name, each in found.items() if name in again}
        return {**done, **again}

    def private(self) -> None:
        return None

    def kept(self) -> Kept:
        return Kept({}, {"received": self.received, "beside": self.beside})

    def restore(self, kept: Kept) -> None:
        self.received, self.beside = dict(kept.about["received"]), Counter(kept.about.get("beside", {}))

    def take_in(self, name: str, declared: Declaration, server: Any, splits: tuple[str, ...]) -> Measures | None:
        """Let a silo arrive after training and keep its model; what that is worth, or None where it went missing."""
        train, validation = (torch.tensor([n], device=self.model.device) for n in declared.sizes[:2])
        roster = Roster((name,), train, validation, self.job.seed)
        cohort, turn = Cohort.everyone(roster, self.model, 0), -1

        def adapt(down: Any) -> Any:
            nonlocal turn
            turn += 1
            blank = Request("adapt", "", self.run, turn, newcomer=True, received=turn - 1, job=self.job)
            blank = replace(blank, largest=largest_upload(self.method, self.axes))
            blobs, failures = self._blobs(blank, {name: encode(down.one(0))})
            if blobs.get(name) == encode(Done()):
                return None
            found, rejected = records(blobs, self.method.up, self.axes, self.model, uploads=True)
            if name not in found:
                raise BadInput((failures | rejected)[name].reason)
            return found[name].map(lambda t: t.to(self.model.device))

        try:
            down = settled(self.method, server, cohort, adapt, MOST_TURNS)
        except BadInput as error:
            self.last[name] = str(error)
            return None
        self.received[name] = turn
        last = Request("measure", "", self.run, turn, newcomer=True, splits=splits, job=self.job)
        found, _ = self._ask(last, {name: encode(down.one(0))}, Measured)
        self._ask(replace(last, kind="keep", pooled=self.pooled), {name: encode(down.one(0))}, Done)
        return _measures(cohort, splits, found, self.job.training.by) if found else None

    def _ask(
        self, blank: Request, bodies: Mapping[str, bytes], kind: type[U]
    ) -> tuple[dict[str, U], dict[str, Failure]]:
        """Answers as records; one that is not such a record is rejected."""
        blobs, failures = self._blobs(blank, bodies)
        axes = self.axes | {"splits": len(blank.splits), "candidates": len(self.job.going)}
        found, rejected = records(blobs, kind, axes, self.model, uploads=kind is self.method.up)
        failures |= rejected
        for name in bodies:
            self.last[name] = failures[name].reason if name in failures else ""
        return found, failures

    def _blobs(self, blank: Request, bodies: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, Failure]]:
        """Ask, and ask again those whose reply was lost; from the second time on a silent silo costs less."""
        known = self.slowest.get(blank.kind)
        timeout = self.patience.reply if known is None else min(self.patience.reply, SHORTEST + LONGER * known)
        began = time.monotonic()
        found = ask(self.transport, blank, bodies, timeout, self.patience.retries, self.received)
        if blank.kind not in ("train", "confirm"):
            size = {"bytes_up": sum(map(len, found[0].values())), "bytes_down": sum(map(len, bodies.values()))}
            self.beside.update(size)
            self.report(**size)
        if len(found[0]) == len(bodies):
            self.slowest[blank.kind] = max(time.monotonic() - began, known or 0.0)
        return found


def records(
    blobs: Mapping[str, bytes], kind: type[U], axes: Mapping[str, int], model: Model, uploads: bool = False
) -> tuple[dict[str, U], dict[str, Rejected]]:
    """Answers as records, and why those that are not such records do not count.

    A server takes uploads in as one record; of all else a silo's policy may hold some back.
    """
    found, rejected = dict[str, U](), dict[str, Rejected]()
    for name, blob in blobs.items():
        try:
            record = decode(kind, blob, model.dtype, rows=1, **axes)
            if isinstance(record, Measured | Scored):
                _check_measures(record)
            found[name] = record
        except BadInput as error:
            rejected[name] = Rejected(str(error))
    for name, why in alike(found, axes, model).items() if uploads else ():
        rejected[name] = Rejected(why)
        del found[name]
    return found, rejected


def largest_upload(method: Method, axes: Mapping[str, int]) -> int:
    """Bytes that an upload of these fields may have; generous, for it stops a flood and no honest silo."""
    widest, total = max(axes.values(), default=1), 0
    for about in every_field(method.up).values():
        names = [axis.rstrip("?") for axis in about.axes if not axis.isdigit()]
        known = math.prod([axes[name] for name in names if name in axes] + [int(a) for a in about.axes if a.isdigit()])
        total += known * (1 if all(name in axes for name in names) else widest)  # axes that are not known are short
    return LARGEST_ANSWER + GENEROUS * max(widest, total)


def bodies_of(cohort: Cohort, down: Down) -> dict[str, bytes]:
    """What each silo is sent, as bytes; what is the same for all is encoded once."""
    if all(about.kind == "shared" for about in every_field(down).values()):
        return dict.fromkeys(cohort.names, encode(down))
    return {name: encode(down.one(place)) for place, name in enumerate(cohort.names)}


def ask(
    transport: Transport,
    blank: Request,
    bodies: Mapping[str, bytes],
    timeout: float,
    retries: int,
    received: Mapping[str, int],
) -> tuple[dict[str, bytes], dict[str, Failure]]:
    """The same request to several silos; lost replies are asked for again, under the next attempt's number."""
    blobs, failures = dict[str, bytes](), dict[str, Failure]()
    open_ = list(bodies)
    for attempt in range(1 + retries):
        requests = {
            name: replace(
                blank,
                silo=name,
                attempt=attempt,
                received=blank.received if blank.kind == "adapt" else received.get(name, -1),
                body=bodies[name],
            )
            for name in open_
        }
        answers = transport.exchange(requests, timeout)
        open_ = []
        for name in requests:
            answer = answers.get(name, Lost("no answer"))
            if isinstance(answer, Answer) and not answer.refusal and answer.to != requests[name].digest():
                failures[name] = Rejected("its answer is to another request")
                open_.append(name)
            elif isinstance(answer, Answer) and not answer.refusal:
                blobs[name] = answer.body
                failures.pop(name, None)
            else:
                reason = f"{REFUSED}{answer.refusal}" if isinstance(answer, Answer) else answer.reason
                failures[name] = Failure(reason)
                if isinstance(answer, Lost):
                    open_.append(name)
        if not open_:
            break
    return blobs, failures


def declarations(
    transport: Transport, run: str, names: list[str], timeout: float
) -> tuple[dict[str, Declaration], dict[str, Failure]]:
    """What silos declare of themselves."""
    blank = Request("declare", "", run, 0)
    return _answers(transport, blank, names, timeout, lambda blob: declaration(decode(Declared, blob, rows=1)))


def descriptions(
    transport: Transport, run: str, names: list[str], timeout: float
) -> tuple[dict[str, Statistics], dict[str, Failure]]:
    """What silos declare of their tables or pictures, so that all can encode alike."""

    def read(blob: bytes) -> Statistics:
        found = decode(Statistics, blob, rows=1)
        description_of(found)  # refused where it is damaged
        return found

    return _answers(transport, Request("describe", "", run, 0), names, timeout, read)


def _answers(
    transport: Transport, blank: Request, names: list[str], timeout: float, read: Callable[[bytes], T]
) -> tuple[dict[str, T], dict[str, Failure]]:
    """What silos answer before a run, as it is read; who answers what cannot be read is left out."""
    blobs, failures = ask(transport, blank, dict.fromkeys(names, b""), timeout, 1, {})
    found = dict[str, T]()
    for name, blob in blobs.items():
        try:
            found[name] = read(blob)
        except (BadInput, IndexError) as error:
            failures[name] = Failure(str(error))
    return found, failures


def unapproved(
    transport: Transport, run: str, jobs: Sequence[Job], names: Sequence[str], timeout: float
) -> tuple[dict[str, Failure], dict[str, Failure]]:
    """The silos whose owners have yet to approve these jobs, how each names them; and those that refuse them, why."""
    blank = Request("propose", "", run, 0, proposed=tuple(jobs))
    _, failures = ask(transport, blank, dict.fromkeys(names, b""), timeout, 1, {})
    waiting = {name: failure for name, failure in failures.items() if AWAITS in failure.reason}
    refused = {n: f for n, f in failures.items() if n not in waiting and f.reason.startswith(REFUSED)}
    return waiting, refused


def declaration(up: Declared) -> Declaration:
    """What a silo declared, refused where no silo can be so."""
    train, validation, test = up.sizes[0].tolist()
    shape, classes, outputs = tuple(up.sample[0].tolist()), int(up.classes[0]), int(up.outputs[0])
    if train < 1 or min(validation, test) < 0 or max(train, validation, test) > MOST_SAMPLES:
        raise BadInput(f"it declares {train}, {validation} and {test} samples to train, validate and test on")
    absurd = max(classes, outputs) > MOST_CLASSES or math.prod(shape) > MOST_INPUTS
    if absurd or (shape and outputs < 1) or min(classes, outputs, *shape, 0) < 0:
        raise BadInput(f"it declares samples of shape {shape}, {classes} classes, {outputs} outputs")
    shares = () if up.shares is None else tuple(up.shares[0].tolist())
    if len(shares) > 2 or not all(0 <= share <= 100 for share in shares):
        raise BadInput(f"it declares {', '.join(map(str, shares[:3]))} hundredths of its rows in its classes")
    return Declaration((train, validation, test), shape, classes, outputs, shares)


def _check_measures(measured: Measured | Scored) -> None:
    """Refuse what no model can be worth; NaN means that there were no samples."""
    for name, values in measured.tensors().items():
        low, high = POSSIBLE.get(name.removesuffix("_cloud"), (-math.inf, math.inf))
        for value in values.flatten().tolist():
            if value < low - ROUNDING or value > high + ROUNDING:
                raise BadInput(f"its {name} of {value:g} cannot be")


def _can_be(curve: np.ndarray, rows: int) -> bool:
    """Whether so many rows can have these log-losses at the temperatures of the grid."""
    return rows > 0 and bool(np.isfinite(curve).all() and curve.min() >= 0 and curve.max() <= MOST_LOSS * rows)


def _measures(cohort: Cohort, splits: tuple[str, ...], found: Mapping[str, Measured], by: str) -> Measures:
    values: dict[tuple[str, str], np.ndarray] = {}
    for place, name in enumerate(cohort.names):
        for measure, values_of in found[name].tensors().items() if name in found else ():
            for split, value in zip(splits, values_of[0].tolist(), strict=True):
                name_of = {"judged": by, "error": f"{by}_error"}.get(measure, measure)
                values.setdefault((split, name_of), np.full(len(cohort.ids), np.nan))[place] = value
    return Measures(cohort, values)


def _tempered(cohort: Cohort, done: Mapping[str, Done]) -> Measures | None:
    """What silos report of the models they have kept; None where nobody does."""
    keys = [(split, name) for split in ("validation", "test") for name in RAW]
    values = {(split, name + TEMPERED): np.full(len(cohort.ids), np.nan) for split, name in keys}
    for place, silo in enumerate(cohort.names):
        found = done[silo].tempered if silo in done else None
        for (split, name), value in zip(keys, [] if found is None else found[0].tolist(), strict=False):
            low, high = POSSIBLE[name]
            values[split, name + TEMPERED][place] = value if low - ROUNDING <= value <= high + ROUNDING else np.nan
    return Measures(cohort, values) if any(np.isfinite(each).any() for each in values.values()) else None
