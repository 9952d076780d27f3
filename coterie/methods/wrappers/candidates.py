"""Candidates: a method with several learning rates at once, each as in a run of its own.

Candidates are more rows of one call: the G models of a silo lie side by side, (k, G, ...), and a mini-batch is one step
of k·G rows, each with its own rate. The server's half, and what begins and ends a round, is done once for each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.engine.across import total
from coterie.engine.method import Batch, Cohort, Method, Model, Roster, Task
from coterie.engine.wrapper import Wrapper
from coterie.wire import Deployable, Down, Private, Record, Server, State, Up, described, every_field

R = TypeVar("R", bound=Record)
LARGEST = 1e15  # of a number that may leave a silo: its square is still finite


class Several(Record):
    """Holds one record of each candidate."""


@cache
def _several(kind: Any, parts: tuple[type[Record], ...]) -> Any:
    """A type of records that hold one of each candidate, as c0, c1, …"""
    inner = {"__annotations__": {f"c{i}": part for i, part in enumerate(parts)}, "__module__": __name__}
    return type(f"Several{kind.__name__}", (Several, kind), {"__doc__": "One of each candidate.", **inner})


@dataclass(frozen=True)
class Candidates(Method):
    """Trains a method once for each rate, a multiple of the learning rate; what it deploys is the first one's.

    With `going` only those go on: nothing of the others crosses, and what is kept of them stays as it is.
    """

    by_columns = True
    lr_by_row = False

    method: Method
    rates: tuple[float, ...]
    going: tuple[int, ...] = ()

    down = property(lambda self: _several(Down, (self.method.down,) * len(self.places)))
    up = property(lambda self: _several(Up, (self.method.up,) * len(self.places)))
    private = property(lambda self: _several(Private, (self.method.private,) * len(self.rates)))

    # As a wrapper has it.
    base, axes, shared, dpsgd, refusal = Wrapper.base, Wrapper.axes, Wrapper.shared, Wrapper.dpsgd, Wrapper.refusal

    @property
    def places(self) -> tuple[int, ...]:
        """Which of the candidates go on."""
        return self.going or tuple(range(len(self.rates)))

    # Server

    def open(self, roster: Roster, model: Model) -> Any:
        return together(Server, [self.method.open(roster, model)] * len(self.rates))

    def send(self, server: Any, cohort: Cohort) -> Any:
        return together(Down, [self.method.send(own, cohort) for own in self._those(server)])

    def receive(self, server: Any, cohort: Cohort, up: Any) -> Any:
        both = zip(self._those(server), each(up), strict=True)
        return self._with(server, [self._received(*pair, cohort) for pair in both])

    def _received(self, server: Any, up: Any, cohort: Cohort) -> Any:
        sound = _sound(up, len(cohort))
        if bool(sound.all()):
            return self.method.receive(server, cohort, up)
        here = sound.nonzero()[:, 0]  # as of any run, uploads that are not finite do not count
        return (
            self.method.receive(server, replace(cohort, ids=cohort.ids[here]), up.take(here)) if len(here) else server
        )

    def unpacked(self, down: Any, up: Any) -> Any:
        return together(Up, [self.method.unpacked(*both) for both in zip(each(down), each(up), strict=True)])

    # Silo

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Any:
        return together(Private, [self.method.enroll(roster, model, rows)] * len(self.rates))

    def begin(self, task: Task, down: Any, private: Any) -> Any:
        parts = zip(self._tasks(task), each(down), self._those(private), strict=True)
        states = [self.method.begin(*part) for part in parts]
        fused = self.method.lr_by_row and _stackable(states[0])
        return _stacked(states) if fused else together(State, states)

    def step(self, task: Task, state: Any, batch: Batch) -> Any:
        if isinstance(state, Several):
            parts = zip(self._tasks(task), each(state), strict=True)
            return together(State, [self.method.step(own, s, replace(batch, lr=own.lr)) for own, s in parts])
        count = len(self.places)
        rates = torch.tensor([own.lr for own in self._tasks(task)], dtype=task.model.dtype, device=batch.x.device)
        batch = replace(batch.repeated(count), lr=rates.repeat(task.k))
        wide = replace(task, silos=task.silos.repeat_interleave(count))
        after = self.method.step(wide, state.map_rows(lambda t: t.flatten(0, 1)), batch)
        return after.map_rows(lambda t: t.reshape(task.k, count, *t.shape[1:]))

    def end(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        apart = each(state) if isinstance(state, Several) else _apart(state, len(self.places))
        parts = zip(self._tasks(task), apart, each(down), self._those(private), strict=True)
        ups, kept = zip(*(self._ended(*part) for part in parts), strict=True)
        return together(Up, ups), self._with(private, kept)

    def _ended(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        up, kept = self.method.end(task, state, down, private)
        lost = (~_sound(up, task.k)).nonzero()[:, 0]
        return up, kept.put(lost, private.take(lost)) if len(lost) else kept

    def personal(self, task: Task, down: Any, private: Any) -> Deployable:
        return next(self.personals(task, down, private))[1]

    def personals(self, task: Task, down: Any, private: Any) -> Iterator[tuple[Task, Deployable]]:
        """The model that each candidate would deploy, and the task with its rate."""
        for own, *parts in zip(self._tasks(task), each(down), self._those(private), strict=True):
            yield own, self.method.personal(own, *parts)

    def _tasks(self, task: Task) -> Iterator[Task]:
        return (replace(task, lr=task.lr * self.rates[place]) for place in self.places)

    def _those(self, record: Record) -> list[Any]:
        """What is kept of the candidates that go on."""
        parts = each(record)
        return [parts[place] for place in self.places]

    def _with(self, record: Record, parts: Sequence[Record]) -> Any:
        """What is kept of all candidates, with these of those that go on."""
        return record.replace(**{f"c{place}": part for place, part in zip(self.places, parts, strict=True)})


def together(kind: Any, parts: Sequence[Record]) -> Any:
    """The records of all candidates as one."""
    return _several(kind, tuple(map(type, parts)))(**{f"c{i}": part for i, part in enumerate(parts)})


def each(record: Record) -> list[Any]:
    """The record of each candidate."""
    return [getattr(record, f.name) for f in fields(record)]  # type: ignore[arg-type]


def _stackable(state: Record) -> bool:
    """Whether all of a state is rows, or a bank that rows point into."""
    inner = [value for value in vars(state).values() if isinstance(value, Record)]
    return all(about.kind != "shared" for about in described(state).values()) and all(map(_stackable, inner))


def _stacked(states: Sequence[R]) -> R:
    """The candidates' states as one with a second axis; their banks one below the other."""
    made: dict[str, Any] = {}
    about = described(states[0])
    for name, value in vars(states[0]).items():
        values = [getattr(state, name) for state in states]
        if isinstance(value, Record):
            made[name] = _stacked(values)
        elif value is not None and about[name].kind == "rows":
            made[name] = torch.stack(values, 1)
    for name, a in about.items():
        if a.kind == "bank":
            banks, picks = [getattr(state, name) for state in states], made[a.picks]
            first = picks.new_tensor([0, *accumulate(len(bank) for bank in banks[:-1])])
            # A candidate that has diverged weighs nothing in the others' sums, and 0 times infinity is not 0.
            made[name] = torch.cat(banks).nan_to_num(0.0, 0.0, 0.0)
            made[a.picks] = torch.where(picks >= 0, picks + first[:, None], picks)
    return states[0].replace(**made)


def _apart(state: Record, count: int) -> list[Any]:
    """The states of so many candidates of one that has them side by side."""
    return [state.map_rows(itemgetter((slice(None), i))) for i in range(count)]


def _sound(up: Record, k: int) -> Tensor:
    """Whether a silo's upload is of numbers that can be reckoned with: (k,)."""
    wrong = torch.zeros(k)
    about = every_field(up)
    for name, value in up.tensors().items():
        if about[name].kind == "rows" and value.is_floating_point():
            sound = (value.abs() < LARGEST).reshape(k, value[:1].numel()).all(1)
            wrong = wrong.to(value.device) + ~sound
    return total(wrong) == 0
