"""What the coordinator asks of a silo and what it answers, as plain data: JSON beside safetensors, no code ever."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from coterie import version as own
from coterie.data.arrays import MOST_CLASSES
from coterie.engine.exchange import Failure
from coterie.engine.method import Method, Roster
from coterie.engine.rows import Model
from coterie.engine.store import SPLITS
from coterie.engine.training import Training
from coterie.errors import BadInput, plain
from coterie.measure.measures import AUTO, MEASURES
from coterie.measure.predictions import RAW
from coterie.measure.tempering import GRID as TEMPERATURES
from coterie.methods import METHODS, make
from coterie.methods.wrappers.candidates import Candidates
from coterie.methods.wrappers.personal import local_buffers
from coterie.models import MODELS, build
from coterie.options import option, parse
from coterie.wire import Up, rows

LONGEST_REFUSAL, LONGEST_NAME = 500, 300  # characters
LARGEST_ANSWER = 1 << 24  # bytes, but for what is trained
BUILD = own.build()  # of this process, found before it forks for a message
AWAITS = "awaits approval"  # how a refusal begins that the silo's owner can lift
MOST_CANDIDATES = 64  # of a search
DEEPEST = 32  # tables and lists within one another in a request; studies have seven
Kind = Literal["declare", "describe", "propose", "train", "confirm", "measure", "keep", "adapt"]


class Declared(Up):
    """What a silo declares of itself when it joins; of a table or pictures the model's sizes are not known yet."""

    sizes: Tensor = rows(
        "training, validation and test samples", "3", seen_by="server; the first two also other silos", below="count"
    )
    sample: Tensor = rows("the shape of one sample", "axes", seen_by="server", below="count")
    classes: Tensor = rows("its largest label plus one; 0: targets are numbers", seen_by="server", below="count")
    outputs: Tensor = rows("outputs that a model of its data needs", seen_by="server", below="count")
    shares: Tensor | None = rows(
        "of a label with two classes at most: the share of training rows in each, in hundredths; a policy may keep it",
        "own classes",
        seen_by="server",
        below="count",
        default=None,
    )


def _measure(doc: str) -> Any:
    """A measure by split, which a silo reports where it has it."""
    return rows(doc, "splits", seen_by="server", default=None)


class Measured(Up):
    """What a silo reports of its model: one value for each split that was asked for (NaN: no data)."""

    loss: Tensor = rows("mean loss", "splits", seen_by="server")
    accuracy: Tensor | None = _measure("accuracy")
    loss_cloud: Tensor | None = _measure("mean loss of its cloud model")
    accuracy_cloud: Tensor | None = _measure("accuracy of its cloud model")
    rmse: Tensor | None = _measure("root mean squared error")
    mae: Tensor | None = _measure("mean absolute error")
    r2: Tensor | None = _measure("share of the targets' variance explained")
    rmse_cloud: Tensor | None = _measure("rmse of its cloud model")
    mae_cloud: Tensor | None = _measure("mae of its cloud model")
    r2_cloud: Tensor | None = _measure("r2 of its cloud model")
    balanced_accuracy: Tensor | None = _measure("balanced accuracy")
    auroc: Tensor | None = _measure("area under the ROC curve")
    auprc: Tensor | None = _measure("average precision")
    f1: Tensor | None = _measure("F1")
    sensitivity: Tensor | None = _measure("sensitivity")
    specificity: Tensor | None = _measure("specificity")
    brier: Tensor | None = _measure("Brier score")
    log_loss: Tensor | None = _measure("log-loss")
    calibration_error: Tensor | None = _measure("calibration error")
    median_error: Tensor | None = _measure("median absolute error")
    spearman: Tensor | None = _measure("correlation of the ranks")
    judged: Tensor | None = _measure("the measure that the study goes by, where it is none of these")
    error: Tensor | None = _measure("the standard error of the measure that the study goes by")


class Scored(Up):
    """What the candidates of a search are worth to a silo."""

    loss: Tensor = rows("mean validation loss of each candidate (NaN: no data)", "candidates", seen_by="server")


class Done(Up):
    """Nothing but that it was done, and of a model that was kept which it is, and how it is to be tempered."""

    round: Tensor | None = rows("the round whose model is kept", seen_by="server", below="count", default=None)
    curve: Tensor | None = rows(
        "of classes: the kept model's summed log-loss on validation rows, at a grid of temperatures",
        str(len(TEMPERATURES)),
        seen_by="server; their sum all silos",
        default=None,
    )
    tempered: Tensor | None = rows(
        "of classes: the tempered model's log-loss, Brier score and calibration error on validation and test rows",
        str(2 * len(RAW)),
        seen_by="server",
        default=None,
    )


@dataclass(frozen=True)
class Membership:
    """Who takes part, and what a model of all their data takes and gives."""

    seed: int = option(MISSING, "of every draw", low=0)
    shape: tuple[int, ...] = option(MISSING, "of one sample", low=0)
    classes: int = option(MISSING, "0: targets are numbers", low=0, high=MOST_CLASSES)
    outputs: int = option(MISSING, "of the model", low=1)
    names: tuple[str, ...] = option(MISSING, "of the members, in the roster's order")
    sizes: tuple[int, ...] = option(MISSING, "their training samples", low=0)
    validation: tuple[int, ...] = option(MISSING, "their validation samples", low=0)

    def roster(self, device: torch.device | None = None) -> Roster:
        """The members."""
        sizes, validation = (torch.tensor(counts, device=device) for counts in (self.sizes, self.validation))
        return Roster(tuple(self.names), sizes, validation, self.seed)


@dataclass(frozen=True, kw_only=True)
class Job(Membership):
    """All that a silo must know of a run beside its own data: names and numbers."""

    method: str
    options: dict[str, Any]
    model: dict[str, Any]
    train: dict[str, Any]
    study: str = ""
    schema: dict[str, Any] = field(default_factory=dict)  # of tables and pictures: how all silos encode them
    plugins: dict[str, str] = field(default_factory=dict)  # packages that bring its method and model, their versions
    tuning: int = option(0, "rounds of the search that comes before its own", low=0, high=1e6)
    rates: tuple[float, ...] = option((), "of a search: the learning rate of each candidate", above=0, high=1e6)
    going: tuple[int, ...] = option((), "of a search: the candidates that still train", low=0)
    base: str = ""  # the SHA-256 of what is frozen in its model

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.sizes) == len(self.validation) == len(set(self.names)):
            raise ValueError("names, sizes and validation are not of the same silos")
        if len(self.rates) > MOST_CANDIDATES:
            raise ValueError(f"a search has {MOST_CANDIDATES} candidates at most")
        if bool(self.rates) != bool(self.going) or list(self.going) != sorted(
            {*self.going} & {*range(len(self.rates))}
        ):
            raise ValueError("going are the places of candidates in rates, in order")
        if self.rates and not self.tuning:
            raise ValueError("tuning: a search of no rounds")

    @functools.cached_property
    def training(self) -> Training:
        """How silos train."""
        return parse(Training, self.train, "[train]")

    def digest(self) -> str:
        """The same for all silos and rounds of a run, whichever candidates of a search still train."""
        table = {key: value for key, value in asdict(self).items() if key != "going"}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    def made(self) -> Method:
        """The method that runs, whatever its label."""
        return make(self.method, self.options)

    def brought(self) -> dict[str, str]:
        """The packages of this machine that bring its method, model and measure, and their versions."""
        of = self.options.get("of")  # of a stack; no method is made here, since a package may be missing
        members = of if isinstance(of, list | tuple) else ()
        inside = [each.get("method") if isinstance(each, Mapping) else each for each in members]
        origins = [
            *(METHODS.origin(str(name)) for name in (self.options.get("method", self.method), *inside)),
            MODELS.origin(str(self.model.get("name"))),
            MEASURES.origin(str(self.train.get("by"))),
        ]
        return dict(origin for origin in origins if origin is not None)

    def built(self, device: torch.device | str = "cpu", weights: Path | None = None) -> tuple[Method, Model, Roster]:
        """The method, the model and the roster, the same at every party; a silo has its own folder of weights."""
        table = self.model
        if weights is not None and "weights" in table:
            own = weights / Path(str(table["weights"])).name
            if not own.is_file():
                raise BadInput(
                    f"the run starts from weights that this silo lacks; put {own.name} into its folder weights"
                )
            table = table | {"weights": str(own)}
        factory, _ = build(table, tuple(self.shape), self.outputs)
        unit = self.schema.get("unit", 1.0)
        model = Model(factory, self.classes, device, unit=unit, sample=tuple(self.shape))
        method = self.made()
        if self.training.buffers == "local":
            method = local_buffers(method, model)
        if self.rates:
            method = Candidates(method, self.rates, self.going)
        return method, model, self.roster(model.device)


@dataclass(frozen=True)
class Request:
    """One question to one silo."""

    kind: Kind
    silo: str
    run: str
    round: int = option(MISSING, "counted from 0", low=0)
    attempt: int = option(0, "counted from 0", low=0)
    received: int = option(-1, "the last round of which the server has this silo's reply; -1: none", low=-1)
    cohort: int = option(1, "how many silos are asked", low=1)
    splits: tuple[str, ...] = ()
    hold: tuple[int, ...] = option((), "rounds whose models to hold, two; the last is asked about", low=1, high=1e9)
    pooled: tuple[float, ...] = option((), "of a model to keep: all silos' log-loss by temperature", low=0, high=1e6)
    newcomer: bool = False  # it arrived after training: `round` counts its turns
    job: Job | None = None
    proposed: tuple[Job, ...] = ()  # all jobs of a study, before its first round
    operator: dict[str, str] = field(default_factory=dict)  # who started the run, signed
    version: str = BUILD
    body: bytes = field(default=b"", repr=False)  # a Down
    largest: int = field(default=LARGEST_ANSWER, compare=False)  # bytes of its answer; for the coordinator alone

    def __post_init__(self) -> None:
        if not {*self.splits} <= {*SPLITS} or len({*self.splits}) < len(self.splits):
            raise ValueError(f"splits are some of {', '.join(SPLITS)}, each of them once")
        if len(self.pooled) not in (0, len(TEMPERATURES)):
            raise ValueError(f"pooled is {len(TEMPERATURES)} numbers")
        if len(self.hold) > 2:
            raise ValueError("hold is two rounds at most: the one picked so far, and the one measured")

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The job that it is part of, or those that it proposes."""
        return self.proposed if self.job is None else (self.job,)

    def head(self) -> str:
        """Everything but the body, as JSON."""
        table = asdict(self)
        del table["body"], table["largest"]
        return json.dumps(table, sort_keys=True)

    def digest(self) -> str:
        """The same only for the same question."""
        total = hashlib.sha256(self.head().encode() + b"\n")
        total.update(self.body)
        return total.hexdigest()


@dataclass(frozen=True)
class Answer:
    """What a silo sends back: an `Up` as bytes, or the reason why nothing leaves it."""

    body: bytes = field(default=b"", repr=False)
    refusal: str = ""
    to: str = ""  # the digest of the request: an answer to another one does not count

    def __post_init__(self) -> None:
        object.__setattr__(self, "refusal", plain(self.refusal, LONGEST_REFUSAL))


class Lost(Failure):
    """The silo is there, but its reply is not: worth asking again."""


class Transport(Protocol):
    """How requests reach silos."""

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        """An answer or a failure for each silo that is asked."""


def request(head: str, body: bytes) -> Request:
    """A request as it arrived; anything unexpected is refused."""
    try:
        table = json.loads(head)
        check_depth(table, "a request arrived damaged")
        json.dumps(table, ensure_ascii=False).encode()  # half a character is a JSON string, but nothing to write down
    except (ValueError, RecursionError) as error:
        raise BadInput(f"a request arrived damaged: {error}") from None
    if not isinstance(table, dict) or {"body", "largest"} & table.keys():
        raise BadInput("a request arrived damaged: its head is not one")
    _check_version("coterie", table.get("version"), BUILD)  # first: another version may have other keys
    read = parse(Request, table, "a request")
    _check_names({"run": read.run, "silo": read.silo})
    for job in read.jobs:
        _check_names({"method": job.method, "study": job.study} | {f"member '{n}'": n for n in job.names})
        theirs, ours = job.plugins, job.brought()
        for package in sorted(theirs.keys() | ours.keys()):
            _check_version(package, theirs.get(package), ours.get(package))
        _check_measured(job)
    return replace(read, body=body)


def check_depth(table: Any, where: str) -> None:
    """Refuse tables within tables without end, at which whatever goes through them would end."""
    level = [table] if isinstance(table, dict | list) else []
    for _ in range(DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
    if level:
        raise BadInput(f"{where}: tables within tables, over {DEEPEST} of them")


def _check_names(names: Mapping[str, str]) -> None:
    """Refuse a name that could forge a line of a log, or flood it."""
    for what, name in names.items():
        if not name.isprintable() or len(name) > LONGEST_NAME:
            raise BadInput(f"a request {what}: may hold no control characters and {LONGEST_NAME} characters at most")


def _check_measured(job: Job) -> None:
    """Refuse to train by what no study can hold, or to measure by what cannot be taken of these labels."""
    by = job.training.by
    if by != AUTO and (by not in MEASURES or not MEASURES[by].fits(job.classes)):
        raise BadInput(f"a request by '{plain(by, 40)}': no measure of labels of {job.classes} classes (0: numbers)")


def _check_version(package: str, theirs: Any, ours: str | None) -> None:
    """Refuse to compute with another version than the coordinator's, or with a package that it does not use."""
    if theirs != ours:
        package, theirs = (plain(str(each), 40) for each in (package, theirs or "none"))
        release = str(ours).partition("+")[0]
        same = "of the same version but with other source files; " if theirs.startswith(f"{release}+") else ""
        raise BadInput(f"the coordinator runs {package} {theirs}, this silo {ours or 'none'}; {same}install the same")
