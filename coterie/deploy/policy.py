"""What a silo allows: `silo.toml`, written by its owner, read before anything is computed or leaves."""

import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from coterie.deploy.messages import Request
from coterie.engine.method import Method
from coterie.errors import BadInput
from coterie.methods import METHODS, innermost, name_of
from coterie.options import option, parse
from coterie.wire import Up

FILE = "silo.toml"


class Refused(Exception):
    """A request that this silo's policy does not allow, and why."""


@dataclass(frozen=True)
class Policy:
    """The limits of what this silo does for a coordinator."""

    methods: tuple[str, ...] = option(tuple(METHODS.packaged), "methods it takes part in")
    rounds: int = option(1000, "rounds of a run it takes part in, at most", low=1)
    fields: tuple[str, ...] = option((), "fields that may leave; none listed: those that the method's page lists")
    smallest_cohort: int = option(2, "silos that a round must ask, at least", low=1)
    largest_upload: int = option(1 << 30, "bytes of one answer, at most", low=1)
    statistics: bool = option(True, "whether means and deviations of a table's columns may leave")
    incumbent: str = option("", "this silo's model of today, a candidate of stack: trees, a column, or an ONNX file")

    def judge(self, request: Request) -> None:
        """Refuse a request before anything is computed for it."""
        if request.kind in ("declare", "describe"):
            return
        if request.job is None:
            raise Refused("a request without a job")
        self._judge_method(request.job.made(), request.kind == "train")
        if max(request.job.training.rounds, request.round + 1) > self.rounds:
            raise Refused(f"a run of {request.job.training.rounds} rounds; allowed: {self.rounds}")
        smallest = self.smallest_cohort
        if request.kind == "train" and request.cohort < smallest:
            raise Refused(f"a cohort of {request.cohort}; at least {smallest} silos must be asked")

    def _judge_method(self, method: Method, trains: bool) -> None:
        """What runs is the method inside the wrappers; what leaves is the upload of all of them."""
        name, leaving = name_of(method), [f.name for f in fields(method.up) if f.default is MISSING]
        if name not in self.methods:
            raise Refused(f"method '{name}' is not among those allowed: {', '.join(self.methods)}")
        if leaving and not fields(innermost(method).up):
            raise Refused(f"field '{leaving[0]}' would leave, and of method '{name}' nothing may")
        if trains:
            self._judge_fields(leaving)

    def _judge_fields(self, names: Iterable[str]) -> None:
        outside = [name for name in names if self.fields and name not in self.fields]
        if outside:
            raise Refused(f"field '{outside[0]}' may not leave; allowed: {', '.join(self.fields)}")

    def judge_upload(self, up: Up) -> None:
        """Refuse an upload before it is encoded."""
        named = up.tensors()
        self._judge_fields(named)
        size = sum(t.nbytes for t in named.values())
        if size > self.largest_upload:
            raise Refused(f"an upload of {size} bytes; allowed: {self.largest_upload}")


def read_policy(folder: Path) -> Policy:
    """The policy in a silo's folder."""
    path = folder / FILE
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; a silo without a policy answers nothing") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not valid TOML: {error}") from None
    policy = parse(Policy, table, FILE)
    unknown = [name for name in policy.methods if name not in METHODS]
    if unknown:
        raise BadInput(f"{path} methods: unknown method '{unknown[0]}'; see `coterie methods`")
    return policy


def policy_text() -> str:
    """A policy file with every limit at its default, and what each means."""
    default = Policy()
    names = ",\n".join(
        "    " + ", ".join(f'"{n}"' for n in default.methods[i : i + 6]) for i in range(0, len(default.methods), 6)
    )
    return f"""# What this silo allows. A request outside it is refused, and no bytes leave.
# The file is read anew for every request.

# Methods it takes part in.
methods = [
{names},
]

# Rounds of a run it takes part in, at most.
rounds = {default.rounds}

# Fields that may leave, e.g. ["w", "loss", "accuracy", "sizes", "sample", "classes", "outputs"].
# None listed: those of the method's page in docs/wire.md, and the measures.
fields = []

# Silos that a round must ask, at least: in an average of few, one silo's model shows through.
smallest_cohort = {default.smallest_cohort}

# Bytes of one answer, at most.
largest_upload = {default.largest_upload}

# Of tables: whether means and deviations of columns may leave, so that all silos standardise alike. With false they
# stay here, and this silo standardises by its own. Names of columns, levels of text and classes always leave, and of
# a label that is a number its count, mean and spread.
statistics = true

# The model that this silo uses today, which a stack may mix in: trees (boosted, of its own rows), a column of
# predictions, or an ONNX file that takes encoded rows. It never leaves, nor does what it gives for a row. Set it before
# a run begins.
incumbent = ""
"""
