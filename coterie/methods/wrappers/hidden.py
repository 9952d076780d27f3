"""What both levels of `[secure]` are: a method whose silos send models alone, and send them masked."""

import hashlib
import math
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.engine.method import Method, Model, Roster, Task
from coterie.engine.wrapper import Wrapper
from coterie.errors import BadInput
from coterie.options import option
from coterie.secure.masks import subkey
from coterie.wire import About, described, held

MODULUS, BYTE = "2^64", "256"
OUT_OF_RANGE = About("0; not a number where its model is out of range, and nothing of it left", "rows", "number", ())


@dataclass(frozen=True)
class Hiding:
    """What both levels let a study choose."""

    limit: float = option(1024.0, "the largest number of a model that may leave, a power of two", low=1, high=2**20)

    def __post_init__(self) -> None:
        if not math.log2(self.limit).is_integer():
            raise ValueError("limit: give a power of two, e.g. 1024")


@dataclass(frozen=True, repr=False)
class WithHiding(Wrapper):
    """A method whose uploads leave under masks."""

    level: ClassVar[str]
    covered: ClassVar[str]  # what hides models, and would not hide more

    method: Method
    options: Any

    def unpacked(self, down: Any, up: Any) -> Any:
        return up

    def opened(self, task: Task, down: Any) -> Any:
        """What the method inside is sent."""
        raise NotImplementedError

    def masked(self, task: Task, up: Any, down: Any) -> Any:
        """An upload as it leaves; of a silo whose model is out of range nothing does."""
        raise NotImplementedError

    def inside(self, task: Task, down: Any, private: Any) -> tuple[Task, Any, Any]:
        return task, self.opened(task, down), private

    def end(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        up, kept = super().end(task, state, down, private)
        return self.masked(task, up, down), kept

    def adapt(self, task: Task, down: Any, private: Any | None) -> tuple[Any | None, Any]:
        up, kept = super().adapt(task, down, private)
        return None if up is None else self.masked(task, up, down), kept

    def flat(self, up: Any) -> tuple[Tensor, Tensor]:
        """An upload's numbers (k, n), zeros where some are out of range, and the mark of those silos."""
        parts = [getattr(up, name).flatten(1) for name in described(self.method.up)]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        fits = (whole.abs() <= self.options.limit).all(1)  # NaN is not
        whole = whole if bool(fits.all()) else torch.where(fits[:, None], whole, 0)
        return whole, torch.where(fits, 0.0, torch.nan)

    def unflat(self, whole: Tensor, like: Any) -> dict[str, Tensor]:
        """The fields of an upload like this one, from all their numbers (k, n)."""
        shapes = {name: getattr(like, name).shape[1:] for name in described(self.method.up)}
        parts = whole.split([math.prod(shape) for shape in shapes.values()], 1)  # type: ignore[no-untyped-call]
        return {name: part.reshape(-1, *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if find_spec("cryptography") is None:
            return f"{self.level}: cryptography is not installed, which makes the masks; pip install 'coterie[secure]'"
        if not fields(self.method.up):
            return f"{self.level}: nothing leaves a silo, so there is nothing to hide from the server"
        models = all(about.has_columns for about in described(self.method.up).values())
        if held(self.method.up) or held(self.method.down) or not models:
            return f"{self.level}: more than models leaves a silo, and {self.covered} would not cover that"
        return self.method.refusal(roster, model)


def check_keys(level: str, task: Task, shared: object) -> None:
    """Refuse to mask under a simulation's public key what a real silo sends."""
    if task.secret and not shared:
        raise BadInput(
            f"{level}: this silo has no key for it, and a simulation's is public; "
            "run the method by itself, under `coterie silo`"
        )


def simulated(task: Task, *parts: str) -> bytes:
    """The key that silos of a simulation share: it goes by the seed, and protects nobody."""
    return subkey(b"simulation", task.seed, *parts)


def digest(row: Tensor) -> bytes:
    """Of the very numbers that are to be hidden: the same only for the same."""
    return hashlib.sha256(row.detach().cpu().contiguous().view(torch.uint8).numpy().data).digest()


def masked_fields(record: Any, seen_by: str = "") -> dict[str, About]:
    """What a record's fields are once its models are masked."""
    return {
        name: replace(about, doc=f"{about.doc}, masked", role="number", below=MODULUS, seen_by=seen_by)
        if about.has_columns
        else about
        for name, about in described(record).items()
    }
