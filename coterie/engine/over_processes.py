"""A method whose silos live on several processes, each with its rows, and whose server is spread over them by columns.

A process holds all of its silos' rows (m/ranks, d) and some columns of all the server's rows (m, d/ranks). What silos
upload changes from the one to the other in one all-to-all, and what they are sent back again; in between means and
mixtures need no exchange, and a Gram matrix one sum of m × m numbers. No process ever holds m × d. That takes a
server's half that is right for some of the columns (`columnwise`); the server of any other method is held whole in
every process, as is a bank of models that silos download.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.engine import across, ranks
from coterie.engine.layout import Columns, Slice, within
from coterie.engine.method import Cohort, Method, Roster
from coterie.engine.rows import Model
from coterie.engine.wrapper import Wrapper
from coterie.wire import About, Record, every_field, placed

R = TypeVar("R", bound=Record)
SILO = {  # what a method defines of the silo's half, where rows are whole
    "enroll", "begin", "step", "end", "personal", "cloud", "adapt", "refusal", "axes", "shared", "unpacked",
    "confirmed", "dpsgd", "by_gradients", "down", "up", "private", "base", "own", "averages", "lr_by_row",
    "plain_steps", "from_own",
}  # fmt: skip


def columnwise(method: Method) -> bool:
    """Whether a method's server half is right for some of the columns of its rows.

    Each class with a function beyond the silo's half says so for itself (`by_columns`): one that was derived from it
    may add columns up.
    """
    if any(about.kind == "bank" for kind in (method.down, method.up) for about in every_field(kind).values()):
        return False
    for kind in type(method).__mro__:
        if issubclass(kind, Method) and not vars(kind).get("by_columns", False):
            own = {name for name, value in vars(kind).items() if callable(value) or isinstance(value, property)}
            if any(not name.startswith("__") and name not in SILO for name in own):
                return False
    inner = getattr(method, "base", None)
    return inner is None or columnwise(inner)


class ModelSlice(Model):
    """A model of which a server sees some columns alone."""

    sliced = True

    def __init__(self, model: Model, here: Columns) -> None:
        self.__dict__.update(vars(model))
        self._all, self._here, self.layout = model, here, Slice(model.layout, here)

    def start(self, seed: int, *key: object) -> Tensor:
        return self._here.take(self._all.start(seed, *key)).clone()


@dataclass(frozen=True)
class Deal:
    """Which silos of a roster live in which process."""

    owner: Tensor  # (m,)
    rank: int
    count: int  # of processes

    @classmethod
    def by_size(cls, sizes: Sequence[int]) -> "Deal":
        """Silos dealt out from the one with most training samples down."""
        owner = torch.empty(len(sizes), dtype=torch.int64)
        order = np.argsort(-np.array(sizes), kind="stable")
        owner[torch.from_numpy(order)] = torch.arange(len(sizes)) % ranks.count()
        return cls(owner, ranks.rank(), ranks.count())

    def here(self) -> list[int]:
        """The silos of this process; one without any holds the first of all, whose work counts for nothing."""
        found = (self.owner == self.rank).nonzero()[:, 0].tolist()
        return found or [0]

    def places(self, ids: Tensor) -> list[Tensor]:
        """By process, which of these silos are there: their places among them."""
        owner = self.owner[ids.cpu()]
        return [(owner == rank).nonzero()[:, 0].to(ids.device) for rank in range(self.count)]


@dataclass(frozen=True, eq=False)
class OverProcesses(Wrapper):
    """Hands the server's half some columns of all uploads, and each process what its silos are sent."""

    method: Method
    deal: Deal
    model: Model

    @property
    def whole(self) -> bool:
        """Whether the server is held whole in every process."""
        return not columnwise(self.method)

    def open(self, roster: Roster, model: Model) -> Any:
        return self.method.open(roster, self._seen(model))

    def send(self, server: Any, cohort: Cohort) -> Any:
        with self._spread():
            down = self.method.send(server, self._seeing(cohort))
        return self.to_silos(down, cohort.ids)

    def receive(self, server: Any, cohort: Cohort, up: Any) -> Any:
        up = self.to_server(up, cohort.ids)
        with self._spread():
            return self.method.receive(server, self._seeing(cohort), up)

    def host(self, server: Any, newcomers: Cohort, up: Any | None) -> Any:
        taken = None if up is None else self.to_server(up, newcomers.ids)
        with self._spread():
            down = self.method.host(server, self._seeing(newcomers), taken)
        return self.to_silos(down, newcomers.ids)

    def trace(self, server: Any, everyone: Cohort, private: Any) -> Mapping[str, Tensor]:
        known = all(vars(kind).get("by_columns", False) for kind in _tracing(self.method))
        places = self.deal.places(everyone.ids)
        with self._spread(lambda values: ranks.gathered(values, places)):
            return self.method.trace(self._with_shared(server), self._seeing(everyone), private if known else None)

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if any("confirm" in vars(kind) for kind in _kinds(self.method) if kind not in (Method, Wrapper)):
            return "silos exchange twice in a round, which goes on in one process alone; start it without torchrun"
        return self.method.refusal(roster, model)

    # Between rows of silos and columns of the server

    def to_silos(self, down: R, ids: Tensor) -> R:
        """What the silos of this process are sent; of a process without any, a row that stands in."""
        places = self.deal.places(ids)
        mine = places[self.deal.rank]
        mine = mine if len(mine) else ids.new_zeros(1)

        def moved(value: Tensor, about: About) -> Tensor:
            if not about.has_columns or self.whole:
                return value[mine] if about.kind == "rows" else value
            if about.kind == "shared":
                return self._with_all_columns(value, about)
            parts, count = self._parts(about), len(places[self.deal.rank])
            shapes = [(count, *value.shape[1:-1], part.width) for part in parts]
            made = _joined(ranks.exchanged([value[place] for place in places], shapes), parts)
            return made if count else made.new_zeros(1, *made.shape[1:])

        return down.change(moved)

    def to_server(self, up: R, ids: Tensor) -> R:
        """Of all uploads what this process's part of the server takes in."""
        places = self.deal.places(ids)
        count = len(places[self.deal.rank])

        def moved(value: Tensor, about: About) -> Tensor:
            if about.kind != "rows":
                return value
            value = value[:count]  # without a row that stands in
            if not about.has_columns or self.whole:
                return ranks.gathered(value, places)
            parts = self._parts(about)
            width = parts[self.deal.rank].width
            shapes = [(len(place), *value.shape[1:-1], width) for place in places]
            return placed(ranks.exchanged([part.take(value) for part in parts], shapes), places)

        return up.change(moved)

    def _with_shared(self, server: R) -> R:
        """The server's record with the whole of what is one for all silos."""

        def moved(value: Tensor, about: About) -> Tensor:
            spread = about.has_columns and about.kind == "shared" and not self.whole
            return self._with_all_columns(value, about) if spread else value

        return server.change(moved)

    def _with_all_columns(self, value: Tensor, about: About) -> Tensor:
        """All columns of something of which each process has some."""
        parts = self._parts(about)
        return _joined(ranks.exchanged([value] * len(parts), [(*value.shape[:-1], p.width) for p in parts]), parts)

    def _parts(self, about: About) -> list[Columns]:
        return parts_of(self.method, self.model, about, self.deal.count)

    def _seen(self, model: Model) -> Model:
        return model if self.whole else ModelSlice(model, model.layout.dealt(self.deal.count)[self.deal.rank])

    def _seeing(self, cohort: Cohort) -> Cohort:
        return replace(cohort, model=self._seen(cohort.model))

    def _spread(self, over_silos: across.Change = across.as_it_is) -> AbstractContextManager[None]:
        return across.spread(across.as_it_is if self.whole else ranks.summed, over_silos)


def parts_of(method: Method, model: Model, about: About, count: int) -> list[Columns]:
    """By process, of so many, its part of the columns of a field."""
    axis = model.layout.whole() if about.columns == "all" else method.shared(model)
    return [within(part, axis) for part in model.layout.dealt(count)]


def _joined(values: Sequence[Tensor], parts: Sequence[Columns]) -> Tensor:
    """Whole rows of parts of their columns."""
    made = values[0].new_empty(*values[0].shape[:-1], sum(part.width for part in parts))
    for value, part in zip(values, parts, strict=True):
        first = 0
        for start, end in part.spans:
            made[..., start:end] = value[..., first : first + end - start]
            first += end - start
    return made


def _kinds(method: Method | None) -> Iterator[type]:
    """The classes of a method, and of the methods inside it."""
    while method is not None:
        yield from type(method).__mro__
        method = getattr(method, "base", None)


def _tracing(method: Method) -> Iterator[type]:
    """The classes whose `trace` is called."""
    while method is not None:
        yield next(kind for kind in type(method).__mro__ if "trace" in vars(kind))
        method = getattr(method, "base", None)  # type: ignore[assignment]
