"""Personal columns: some columns of a method's models stay on the silos, whatever the method does with the rest.

What crosses holds the other columns alone, and the server's models have zeros in place of them, so that its means and
distances are over what is shared. A silo keeps those of the model it uploads, and sets them into whatever model it is
sent; its private models have their own and keep them. `personal = ["head"]` in a method's table is one use of it,
`[train] buffers = "local"` (BatchNorm's statistics) another, FedPer, LG-FedAvg, FedRep and FedBN are others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from torch import Tensor

from coterie.engine.layout import Columns
from coterie.engine.method import Cohort, Method, Nothing, Predictor, Private, Roster
from coterie.engine.rows import Model
from coterie.engine.task import Task
from coterie.engine.wrapper import Wrapper
from coterie.errors import BadInput
from coterie.methods.parts.averaging import global_predictor
from coterie.methods.parts.partly import fit_on
from coterie.options import option
from coterie.wire import Record, described, rows, with_shared_columns

R = TypeVar("R", bound=Record)


class WithOwn(Private):
    """What the method inside keeps, and the personal columns of the model that the silo uploads."""

    own: Tensor | None = rows("the personal columns of the model it uploads", "personal", default=None)
    inner: Private


@dataclass(frozen=True, repr=False)
class Personal(Wrapper):
    """Keeps some columns of the method's models on the silos; which, a subclass decides."""

    by_columns = True
    down = property(lambda self: with_shared_columns(self.base.down))
    up = property(lambda self: with_shared_columns(self.base.up))
    private = WithOwn

    def own(self, model: Model) -> Columns:
        """The columns that stay."""
        raise NotImplementedError

    def shared(self, model: Model) -> Columns:
        return model.layout.columns({*self.base.shared(model).names} - {*self.own(model).names})

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        return self.base.axes(roster, model) | {"s": self.shared(model).width}

    # Server

    def open(self, roster: Roster, model: Model) -> Any:
        return self._without(self.base.open(roster, model), model)

    def send(self, server: Any, cohort: Cohort) -> Any:
        return self._packed(self.down, self.base.send(server, cohort), cohort.model)

    def receive(self, server: Any, cohort: Cohort, up: Any) -> Any:
        return self.base.receive(server, cohort, self._whole(self.base.up, up, cohort.model))

    def host(self, server: Any, newcomers: Cohort, up: Any | None) -> Any:
        whole = None if up is None else self._whole(self.base.up, up, newcomers.model)
        return self._packed(self.down, self.base.host(server, newcomers, whole), newcomers.model)

    # Silo

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> WithOwn:
        start = self.own(model).take(model.start(roster.seed)).expand(len(rows), -1).clone()
        return self.keeps(start, self.base.enroll(roster, model, rows))

    def inside(self, task: Task, down: Any, private: WithOwn) -> tuple[Task, Any, Any]:
        return task, self.sent(task, down, private), private.inner

    def end(self, task: Task, state: Any, down: Any, private: WithOwn) -> tuple[Any, WithOwn]:
        up, kept = super().end(task, state, down, private)
        return self._packed(self.up, up, task.model), self.keeps(self._own_of(up, task.model), kept)

    def adapt(self, task: Task, down: Any, private: WithOwn | None) -> tuple[Any | None, WithOwn]:
        """A newcomer trains its personal columns, alone, in the model it is sent; then it does as the method says."""
        if private is None:
            own = self._arrived(task, self._whole(self.base.down, down, task.model, self.newly(task, down)))
        else:
            own = self._own_in(task, private)
        sent = self._whole(self.base.down, down, task.model, own)
        up, kept = self.base.adapt(task, sent, None if private is None else private.inner)
        if up is None:
            return None, self.keeps(own, kept)
        return self._packed(self.up, up, task.model), self.keeps(self._own_of(up, task.model), kept)

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if not _exchanges_one_model(self.base):
            return "personal: it does not exchange one model with each silo, so no columns of that can stay there"
        if not self.shared(model).width:
            return "personal: all columns of this model would stay on the silos; take one with more layers, or separate"
        return self.base.refusal(roster, model)

    def trace(self, server: Any, everyone: Cohort, private: WithOwn | None) -> Mapping[str, Tensor]:
        whole = not everyone.model.sliced  # the silos' rows always are
        inner = self._without(private.inner, everyone.model) if private is not None and whole else None
        return self.base.trace(server, everyone, inner)

    # What a method may do otherwise

    def keeps(self, own: Tensor, inner: Private) -> WithOwn:
        """What a silo with these personal columns (k, p) keeps."""
        return WithOwn(own=own if own.shape[1] else None, inner=inner)

    def newly(self, task: Task, down: Any) -> Tensor:
        """The personal columns (k, p) that a newcomer starts to train from."""
        return self._start(task)

    # Between the columns that cross and whole rows

    def sent(self, task: Task, down: Any, private: WithOwn) -> Any:
        """What the method inside is sent: the model that arrived, with the silo's own columns."""
        return self._whole(self.base.down, down, task.model, self._own_in(task, private))

    def _packed(self, kind: Any, record: Record, model: Model) -> Any:
        """A record of the method inside as it crosses."""
        shared, inner = self.shared(model), self.base.shared(model)
        made = {name: shared.take(_row(value, inner, model)) for name, value in _models(record).items()}
        return kind(**(vars(record) | made))

    def _whole(self, kind: Any, record: Record, model: Model, own: Tensor | None = None) -> Any:
        """A record that crossed as the method inside has it: with zeros or a silo's own columns (k, p)."""
        shared, inner, mine = self.shared(model), self.base.shared(model), self.own(model)
        made = {}
        for name, value in _models(record).items():
            row = _row(value, shared, model)
            row = row if own is None else mine.put(row.expand(len(own), -1), own)
            made[name] = inner.take(row) if inner.width < model.width else row
        return kind(**(vars(record) | made))

    def _without(self, record: R, model: Model) -> R:
        """The record with zeros in the personal columns of its models."""
        mine = self.own(model)
        return record.change(lambda t, about: mine.put(t, t.new_zeros(mine.width)) if about.has_columns else t)

    def _own_of(self, up: Record, model: Model) -> Tensor:
        """The personal columns of the model that the method inside uploads."""
        (value,) = _models(up).values()
        return self.own(model).take(_row(value, self.base.shared(model), model)).clone()

    def _own_in(self, task: Task, private: WithOwn) -> Tensor:
        return self._start(task) if private.own is None else private.own

    def _start(self, task: Task) -> Tensor:
        return self.own(task.model).take(task.start())

    def _arrived(self, task: Task, sent: Record) -> Tensor:
        """The personal columns after a round's epochs over newcomers' data in which nothing else moves."""
        mine, (value,) = self.own(task.model), _models(sent).values()
        w = _row(value, self.base.shared(task.model), task.model)
        if not mine.width:
            return w[:, :0]
        return mine.take(fit_on(task, w, mine, "personal" if mine.trained else "statistics"))


@dataclass(frozen=True)
class OwnCopy(Personal):
    """Of a method of one global model whose silos deploy their own: that model with a silo's columns is its cloud's."""

    def cloud(self, task: Task, down: Any, private: WithOwn) -> Predictor:
        return global_predictor(task, self.sent(task, down, private))


@dataclass(frozen=True)
class MadeAgain(Personal):
    """Whose columns that stay are everybody's: they stand still, and every silo makes them again from the seed."""

    by_columns = True

    def keeps(self, own: Tensor, inner: Private) -> WithOwn:
        return WithOwn(inner=inner)

    def adapt(self, task: Task, down: Any, private: WithOwn | None) -> tuple[None, WithOwn]:
        """A newcomer gets the rest, and nothing more is to do."""
        return None, WithOwn(inner=Nothing())


@dataclass(frozen=True)
class PersonalColumns:
    """`personal = ["head"]` in a method's table."""

    columns: tuple[str, ...] = option(
        ("head",), "what stays on the silos: head, body, norm, or names of layers and weights, in which * may stand"
    )


@dataclass(frozen=True, repr=False)
class WithPersonal(Personal):
    """Any method that exchanges one model with each silo, with some columns of it kept on the silos."""

    method: Method
    options: PersonalColumns

    def own(self, model: Model) -> Columns:
        return model.columns(*self.options.columns)


@dataclass(frozen=True)
class LocalBuffers(Personal):
    """BatchNorm's statistics stay on the silo; see `local_buffers`."""

    method: Method

    def own(self, model: Model) -> Columns:
        return model.layout.columns({block.name for block in model.layout.buffers})


def local_buffers(method: Method, model: Model) -> Method:
    """The method with the statistics of its models kept on the silos; itself where there is nothing to keep.

    What a silo uploads must be one model, trained from the one it was sent: only then are the columns of its buffers
    that model's statistics. Clipping, noise and compression go around it: they see what leaves.
    """
    if not model.layout.buffers or not fields(method.up):
        return method
    if isinstance(method, Wrapper) and not isinstance(method, Personal) and hasattr(method, "method"):
        return replace(method, method=local_buffers(method.method, model))  # type: ignore[call-arg]
    if not _exchanges_one_model(method):
        raise BadInput(
            f"[train] buffers = 'local': {type(method).__name__} does not exchange one model with each silo, so there "
            "is no telling whose statistics are whose; take buffers = 'shared' or a model without BatchNorm"
        )
    return LocalBuffers(method)


def _exchanges_one_model(method: Method) -> bool:
    """Whether a silo is sent one model, uploads one, and nothing else that has columns crosses."""
    kinds = [described(kind).values() for kind in (method.down, method.up)]
    return all(
        [about.kind != "bank" and about.role == "model" and len(about.axes) == 1 for about in each if about.has_columns]
        == [True]
        for each in kinds
    )


def _models(record: Record) -> dict[str, Tensor]:
    """The models of a record by name: one, of a silo or of all."""
    return {name: getattr(record, name) for name, about in described(record).items() if about.role == "model"}


def _row(values: Tensor, columns: Columns, model: Model) -> Tensor:
    """Some columns (..., s) as whole rows (..., d), the others zero."""
    if columns.width == model.width:
        return values
    return columns.put(values.new_zeros(*values.shape[:-1], model.width), values)
