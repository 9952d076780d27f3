"""`[train] buffers = "local"`: BatchNorm's statistics stay on the silo, whatever a method does with the weights.

The columns of buffers are zero in every upload and, from the start, in the server's models. A silo keeps those of the
model it uploads, and sets them into whatever model it is sent; its private models have their own and keep them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.engine.method import Cohort, Deployable, Method, Private, Roster
from coterie.engine.rows import Model
from coterie.engine.task import Batch, Task, Weights
from coterie.engine.wrapper import Wrapper
from coterie.errors import BadInput
from coterie.wire import Record, described, rows

R = TypeVar("R", bound=Record)


class WithStatistics(Private):
    """What the method inside keeps, and the statistics of the model that the silo uploads."""

    statistics: Tensor = rows("the buffers of the model it uploads", "buffers")
    inner: Private


@dataclass(frozen=True)
class LocalBuffers(Wrapper):
    """Keeps the buffers of the method's models on the silos; see `local_buffers`."""

    method: Method

    @property
    def base(self) -> Method:
        return self.method

    @property
    def private(self) -> type[Private]:  # type: ignore[override]
        return WithStatistics

    def open(self, roster: Roster, model: Model) -> Any:
        return _without(self.method.open(roster, model), model)

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> WithStatistics:
        start = model.start(roster.seed)[model.layout.trained :]
        return WithStatistics(
            statistics=start.expand(len(rows), -1).clone(), inner=self.method.enroll(roster, model, rows)
        )

    def begin(self, task: Task, down: Any, private: WithStatistics) -> Any:
        return self.method.begin(task, _with(down, private.statistics), private.inner)

    def end(self, task: Task, state: Any, down: Any, private: WithStatistics) -> tuple[Any, WithStatistics]:
        up, kept = self.method.end(task, state, _with(down, private.statistics), private.inner)
        return _without(up, task.model), WithStatistics(statistics=_trained(up, task.model), inner=kept)

    def personal(self, task: Task, down: Any, private: WithStatistics) -> Deployable:
        return self.method.personal(task, _with(down, private.statistics), private.inner)

    def cloud(self, task: Task, down: Any, private: WithStatistics) -> Deployable | None:
        return self.method.cloud(task, _with(down, private.statistics), private.inner)

    def adapt(self, task: Task, down: Any, private: WithStatistics | None) -> tuple[Any | None, WithStatistics]:
        """A newcomer has no statistics yet: it takes them of the model it is sent, on its own data."""
        statistics = _measured(task, down) if private is None else private.statistics
        up, kept = self.method.adapt(task, _with(down, statistics), None if private is None else private.inner)
        if up is None:
            return None, WithStatistics(statistics=statistics, inner=kept)
        return _without(up, task.model), WithStatistics(statistics=_trained(up, task.model), inner=kept)

    def trace(self, server: Any, everyone: Cohort, private: WithStatistics | None) -> Mapping[str, Tensor]:
        return self.method.trace(server, everyone, None if private is None else private.inner)


def local_buffers(method: Method, model: Model) -> Method:
    """The method with the statistics of its models kept on the silos; itself where there is nothing to keep.

    What a silo uploads must be one model, trained from the one it was sent: only then are the columns of its buffers
    that model's statistics.
    """
    if not model.layout.buffers or not fields(method.up):
        return method
    like_models = [each for kind in (method.down, method.up) for each in described(kind).values() if each.has_columns]
    if len(_models(method.down)) != 1 or len(_models(method.up)) != 1 or len(like_models) != 2:
        raise BadInput(
            f"[train] buffers = 'local': {type(method).__name__} does not exchange one model with each silo, so there "
            "is no telling whose statistics are whose; take buffers = 'shared' or a model without BatchNorm"
        )
    return LocalBuffers(method)


def _models(kind: type[Record]) -> list[str]:
    """The fields that hold one model, of a silo or of all."""
    return [name for name, about in described(kind).items() if about.role == "model" and len(about.axes) == 1]


def _trained(up: Record, model: Model) -> Tensor:
    """The buffers of the model that is uploaded."""
    (name,) = _models(type(up))
    statistics: Tensor = getattr(up, name)[:, model.layout.trained :]
    return statistics


def _without(record: R, model: Model) -> R:
    """The record with zeros for the buffers of its models."""
    made = {}
    for name in _models(type(record)):
        made[name] = getattr(record, name).clone()
        made[name][..., model.layout.trained :] = 0
    return record.replace(**made)


def _with(record: R, statistics: Tensor) -> R:
    """The record with these buffers (k, ...) in its models, one per silo."""
    k, size = statistics.shape
    made = {}
    for name in _models(type(record)):
        weights = getattr(record, name)[..., :-size]
        made[name] = torch.cat([weights.expand(k, -1), statistics], 1)
    return record.replace(**made)


def _measured(task: Task, down: Record) -> Tensor:
    """The buffers of the model that silos are sent, after a round's epochs over their data; its weights stand still."""
    start = task.start()[:, task.model.layout.trained :]
    (name,) = _models(type(down))
    sent: Tensor = getattr(_with(down, start), name)
    seen = task.run(_look, Weights(w=sent, opt=task.optimizer.init(sent)), "statistics").w
    return seen[:, task.model.layout.trained :]


def _look(task: Task, state: Weights, batch: Batch) -> Weights:
    buffers = task.grad(state.w, batch).buffers
    assert buffers is not None
    return state.replace(w=torch.cat([state.w[:, : -buffers.shape[-1]], buffers], 1))
