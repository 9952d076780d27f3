"""What a silo allows: `silo.toml`, written by its owner, read before anything is computed or leaves."""

import math
import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Literal

from coterie.data.own.agree import kinds_of
from coterie.data.own.schema import Schema
from coterie.data.own.statistics import LEVELS, Description
from coterie.deploy.home import LARGEST_DOWNLOAD
from coterie.deploy.messages import BUILD, Request
from coterie.engine.method import Method
from coterie.engine.training import Training
from coterie.errors import BadInput, plain, refused
from coterie.methods import METHODS, innermost, level_of, name_of, names_of
from coterie.methods.wrappers.spent import privacy_of
from coterie.options import option, parse
from coterie.wire import Up, every_field

FILE = "silo.toml"
MOST_PROPOSED = 100  # studies that may wait for their approval


class Refused(Exception):
    """A request that this silo's policy does not allow, and why."""


@dataclass(frozen=True)
class Policy:
    """The limits of what this silo does for a coordinator."""

    approve: Literal["each", "all"] = option(
        "each", "each: its owner approves each study; all: those within the limits"
    )
    methods: tuple[str, ...] = option(tuple(METHODS.packaged), "methods it takes part in")
    rounds: int = option(1000, "rounds of a run it takes part in, at most", low=1)
    fields: tuple[str, ...] = option((), "fields that may leave; none listed: those that the method's page lists")
    smallest_cohort: int = option(2, "silos that a round must ask, at least", low=1)
    smallest_batch: int = option(4, "samples of a training step, at least", low=1)
    fewest_steps: int = option(2, "training steps between two uploads, at least", low=1)
    runs: int = option(20, "runs of an approved study, one for each seed, before its owner is asked again", low=1)
    answers: int = option(100_000, "answers over all runs, at most", low=0)
    epsilon: float = option(math.inf, "privacy that all runs together may spend; inf: none is demanded", above=0)
    require: Literal["none", "record", "silo"] = option(
        "none", "what noise must hide: each record, or all data; none: all data where epsilon is a number, else nothing"
    )
    secure: Literal["none", "blind", "secagg"] = option(
        "none", "at which level of [secure] uploads must leave, at that one alone; none: at any, or in the open"
    )
    delta: float = option(1e-5, "δ, for which epsilon is counted", above=0, below=1)
    largest_upload: int = option(1 << 30, "bytes of one answer, at most", low=1)
    largest_download: int = option(LARGEST_DOWNLOAD, "bytes of one request, at most", low=1)
    statistics: bool = option(True, "whether means and deviations of a table's columns may leave")
    proxy: str = option(
        "", "HTTP proxy by which this silo reaches its coordinator; none: by the environment, or directly"
    )
    version: str = option("", "the coterie that it runs, e.g. 0.1.0+91c3a51e0c6b2d44; none: whichever is installed")
    incumbent: str = option("", "this silo's model of today, a candidate of stack: trees, a column, or an ONNX file")

    @property
    def demanded(self) -> Literal["none", "record", "silo"]:
        """What noise must hide of what is trained."""
        return "silo" if self.require == "none" and math.isfinite(self.epsilon) else self.require

    def judge(self, request: Request) -> None:
        """Refuse a request before anything is computed for it."""
        if self.version and self.version != BUILD:
            raise Refused(f"this silo runs coterie {BUILD}, and its policy allows {plain(self.version, 40)} alone")
        if len(request.body) > self.largest_download:
            raise Refused(f"a request of {len(request.body)} bytes; allowed: {self.largest_download}")
        if request.kind in ("declare", "describe"):
            if request.jobs:  # none of what follows would judge them
                raise Refused(f"{request.kind}: of no job")
            return
        if not request.jobs or (request.job is None) != (request.kind == "propose"):
            raise Refused("a request without a job")
        if len(request.jobs) > MOST_PROPOSED:
            raise Refused(f"{len(request.jobs)} studies at once; {MOST_PROPOSED} may be proposed")
        for job in request.jobs:
            self._judge_method(job.made(), request.kind in ("propose", "train"))
            rounds = job.training.rounds + job.tuning
            if max(rounds, request.round + 1) > self.rounds:
                included = f", {job.tuning} of them of tuning" if job.tuning else ""
                raise Refused(f"a run of {rounds} rounds{included}; allowed: {self.rounds}")
            planned, what = (job.tuning, "search") if job.rates else (job.training.rounds, "run")
            if request.round >= planned and (job.rates or request.kind in ("train", "confirm")):
                raise Refused(f"round {request.round + 1} of a {what} of {planned} rounds")
            measured = ("validation",) if job.rates else job.training.measure
            if more := {*request.splits} - {*measured}:
                raise Refused(f"{min(more)} rows measured; this {what} measures {', '.join(measured)}")
        smallest = self.smallest_cohort
        if request.kind == "train" and request.cohort < smallest:
            raise Refused(f"a cohort of {request.cohort}; at least {smallest} silos must be asked")

    def judge_sum(self, silos: int) -> None:
        """Refuse a sum of fewer silos, each of which this one shares a key with, than a round must ask."""
        if silos < self.smallest_cohort:
            raise Refused(f"a sum of {silos} silos; at least {self.smallest_cohort} must be in it")

    def judge_steps(self, method: Method, training: Training, samples: int) -> None:
        """Refuse training whose upload would show through to a few samples; `samples`: what this silo trains on."""
        if not fields(method.up):
            return
        held, samples = samples, training.taken(samples)
        batch = min(training.batch_size, samples)
        larger = "in the study take a larger [train] batch_size" if batch < samples else "this silo has no more"
        self._judge_batch(batch, f"{batch} samples in a training step", larger)
        drawn = (privacy := privacy_of(method)) is not None and privacy.level == "record"  # batches of no fixed size
        last = 0 if training.whole_batches or drawn else samples % batch
        other = f"in the study take another [train] batch_size than {batch}"
        if last:
            few = f"{last} of {samples} samples in an epoch's last step"
            self._judge_batch(last, few, f"{other} or whole_batches = true")
        if drawn and samples < held:
            raise Refused(
                f"batches by chance of {samples} of {held} samples, which hide less than was computed; in the study "
                "take [train] round_samples = 0"
            )
        least = method.fewest(samples, (batch, last) if last else (batch,))
        self._judge_batch(least, f"{name_of(method)} takes gradients of {least} of {samples} samples", other)
        steps = training.local_epochs * (samples // batch if training.whole_batches else -(-samples // batch))
        if steps < self.fewest_steps:
            few = f"{steps} training steps before an upload; at least {self.fewest_steps} must be"
            more = "take more [train] local_epochs or a smaller batch_size"
            raise Refused(f"{few}: in the study {more}, or at the silo lower fewest_steps in {FILE}")

    def _judge_batch(self, samples: int, found: str, remedy: str) -> None:
        """Refuse a step over few samples, with what both sides can do."""
        if samples < self.smallest_batch:
            few = f"{found}; at least {self.smallest_batch} must be"
            raise Refused(f"{few}: {remedy}, or at the silo lower smallest_batch in {FILE}")

    def _judge_method(self, method: Method, trains: bool) -> None:
        """What runs is the method inside the wrappers, and a stack's members; what leaves is the upload of all."""
        optional = {f.name for f in fields(method.up) if f.default is not MISSING}
        name, leaving = name_of(method), [each for each in every_field(method.up) if each not in optional]
        if outside := [each for each in names_of(method) if each not in self.methods]:
            raise Refused(f"method '{outside[0]}' is not among those allowed: {', '.join(self.methods)}")
        level = level_of(method)
        if fields(method.up) and self.secure not in ("none", level):
            found = f"method '{name}' runs {level}" if level else f"of method '{name}' the server learns every upload"
            raise Refused(f"this silo demands {self.secure}, and {found}")
        if leaving and not fields(innermost(method).up):
            raise Refused(f"field '{leaving[0]}' would leave, and of method '{name}' nothing may")
        if trains:
            self._judge_fields(leaving)

    def _judge_fields(self, names: Iterable[str]) -> None:
        last = [name.rpartition(".")[2] for name in names]  # of a record inside an upload, as of the upload
        outside = [name for name in last if self.fields and name not in self.fields]
        if outside:
            raise Refused(f"field '{outside[0]}' may not leave; allowed: {', '.join(self.fields)}")

    def judge_upload(self, up: Up) -> None:
        """Refuse an upload before it is encoded."""
        named = up.tensors()
        self._judge_fields(named)
        size = sum(t.nbytes for t in named.values())
        if size > self.largest_upload:
            raise Refused(f"an upload of {size} bytes; allowed: {self.largest_upload}")


def judge_schema(agreed: Schema, own: Description) -> None:
    """Refuse to encode rows in another way than as what they are: numbers as levels would give every value away."""
    kinds = kinds_of(own)
    names = [column.name for column in agreed.columns]
    if bool(names) != (not own.shape) or len({*names}) < len(names):
        raise Refused("the run's schema is not of this silo's columns, each of them once")
    if agreed.classes and own.classes is None:
        raise Refused("the run's schema has classes, and this silo's label is a number")
    for column in agreed.columns:
        kind = kinds.get(column.name, "missing")
        if kind not in (column.kind, "empty"):
            raise Refused(f"the run's schema has column {column.name!r} as {column.kind}; here it is {kind}")
        if len(column.levels) > LEVELS:
            raise Refused(f"the run's schema has {len(column.levels)} levels of {column.name!r}; allowed: {LEVELS}")


def read_policy(folder: Path) -> Policy:
    """The policy in a silo's folder."""
    path = folder / FILE
    try:
        with refused(path, "a silo without a policy answers nothing"):
            table = tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not valid TOML: {error}") from None
    policy = parse(Policy, table, FILE)
    unknown = [name for name in policy.methods if name not in METHODS]
    if unknown:
        raise BadInput(f"{path} methods: unknown method '{unknown[0]}'; see `coterie methods`")
    return policy


def policy_text(approve: Literal["each", "all"] = "each") -> str:
    """A policy file with every limit at its default, and what each means."""
    default = Policy()
    names = ",\n".join(
        "    " + ", ".join(f'"{n}"' for n in default.methods[i : i + 6]) for i in range(0, len(default.methods), 6)
    )
    return f"""# What this silo allows. A request outside it is refused, and no bytes leave.
# The file is read anew for every request.

# "each": no study is trained or measured here before `coterie silo approve` has approved it: its columns, model,
# method and training, by their hash. "all": every study within the limits below runs without asking.
approve = "{approve}"

# Runs of an approved study, one for each seed: once it has given as many answers as so many need (four for each round
# and eight), or under three times as many names (each may be searched twice), it asks its owner again.
runs = {default.runs}

# Methods it takes part in.
methods = [
{names},
]

# Rounds of a run it takes part in, at most.
rounds = {default.rounds}

# Fields that may leave, e.g. ["w", "loss", "accuracy", "sizes", "sample", "classes", "outputs", "shares"].
# None listed: those of the method's page in docs/wire.md, and the measures.
fields = []

# Silos that a round must ask, at least: in an average of few, one silo's model shows through. It is the coordinator's
# own number: no silo can verify who else was asked, nor who answered; of `secagg` it counts whose uploads are summed.
smallest_cohort = {default.smallest_cohort}

# Samples of a training step (an epoch's last is one, too) and steps between two uploads, at least: the fewer, the more
# an upload tells of single samples. Neither bounds what models that were made to find samples tell: only epsilon does.
smallest_batch = {default.smallest_batch}
fewest_steps = {default.fewest_steps}

# Answers over all runs, at most: what it declares of itself, training, measuring, keeping a model. Each takes some
# room on its disk; `coterie silo approve` prints how many were given.
answers = {default.answers}

# Differential privacy that all runs, methods and seeds together may spend. With a number, nothing trained leaves
# without noise, and no more than ε = epsilon for δ = delta (needs coterie[privacy]). inf: none is demanded.
epsilon = inf
# What that noise must hide. "silo": all data together. "record": each record at least, as `level = "record"` of a
# study's privacy does; ε is then of one record. "none": all data where epsilon is a number, else nothing.
require = "{default.require}"
delta = {default.delta}

# What the coordinator may learn of uploads. "blind": it computes on what it cannot read; a silo on its side gives it
# everything. "secagg": it sees sums of uploads alone, also with some silos on its side. Each is satisfied by itself
# alone, since they protect from different parties. "none": nothing is demanded, and it may see every upload.
secure = "{default.secure}"

# Bytes of one answer, at most.
largest_upload = {default.largest_upload}

# Bytes of one request, at most: counted while they arrive, so that whoever stands where the coordinator was fills
# neither memory nor disk. A request has a model of the study, or several where a method sends those of other silos.
# What is more is dropped, the coordinator is told, and the silo goes on. Keep it below a third of the memory.
largest_download = {default.largest_download}

# Of tables: whether means and deviations of columns may leave, so that all silos standardise alike. With false they
# stay here, and this silo standardises by its own. Names of columns, levels of text and classes always leave, and of
# a label that is a number its count, mean and spread. With false the shares of two classes stay here as well, and
# methods are judged by accuracy unless the study names another measure.
statistics = true

# The HTTP proxy by which this silo reaches its coordinator, e.g. "http://proxy.example.org:3128"; read when it starts.
# Empty: the one that the environment names (HTTPS_PROXY, NO_PROXY), or none.
proxy = ""

# The coterie that this silo runs, with the hash of its source files, e.g. "{BUILD}": any other answers
# nothing, so that an upgrade is a decision of this silo's owner. The coordinator must always run the same as the silo.
# Empty: whichever is installed.
version = ""

# The model that this silo uses today, which a stack may mix in: trees (boosted, of its own rows), a column of
# predictions, or an ONNX file that takes encoded rows. It never leaves; of what it gives for rows, sums over all
# validation rows do, since they tell how well it fits. Set it before a run begins.
incumbent = ""
"""
