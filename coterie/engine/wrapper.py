"""Methods around methods: a wrapper hands everything on to `base` and changes one thing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from coterie.engine.dpsgd import DPSGD
from coterie.engine.method import Batch, Cohort, Columns, Deployable, Down, Method, Model, Roster, Task, Up


def _of_base(name: str) -> Any:
    return property(lambda self: getattr(self.base, name))


@dataclass(frozen=True)
class Wrapper(Method):
    """Hands everything on to the method it wraps."""

    by_columns: ClassVar[bool] = True

    @property
    def base(self) -> Method:
        """The method inside."""
        raise NotImplementedError

    # What crosses, and how it trains, is as inside.

    down = _of_base("down")
    up = _of_base("up")
    private = _of_base("private")
    averages = _of_base("averages")
    compares = _of_base("compares")
    lr_by_row = _of_base("lr_by_row")
    plain_steps = _of_base("plain_steps")
    from_own = _of_base("from_own")
    by_gradients = _of_base("by_gradients")

    def open(self, roster: Roster, model: Model) -> Any:
        return self.base.open(roster, model)

    def send(self, server: Any, cohort: Cohort) -> Any:
        return self.base.send(server, cohort)

    def receive(self, server: Any, cohort: Cohort, up: Any) -> Any:
        return self.base.receive(server, cohort, up)

    def confirm(self, asked: Cohort, cohort: Cohort, up: Any) -> Down | None:
        return self.base.confirm(asked, cohort, up)

    def confirmed(self, task: Task, question: Any) -> Up:
        return self.base.confirmed(task, question)

    def summed(self, asked: Cohort, cohort: Cohort, up: Any, answered: Cohort, answers: Any) -> Any:
        return self.base.summed(asked, cohort, up, answered, answers)

    def unpacked(self, down: Any, up: Any) -> Any:
        return self.base.unpacked(down, up)

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        return self.base.axes(roster, model)

    def shared(self, model: Model) -> Columns:
        return self.base.shared(model)

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Any:
        return self.base.enroll(roster, model, rows)

    def begin(self, task: Task, down: Any, private: Any) -> Any:
        return self.base.begin(task, down, private)

    def step(self, task: Task, state: Any, batch: Batch) -> Any:
        return self.base.step(task, state, batch)

    def end(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        return self.base.end(task, state, down, private)

    def personal(self, task: Task, down: Any, private: Any) -> Deployable:
        return self.base.personal(task, down, private)

    def cloud(self, task: Task, down: Any, private: Any) -> Deployable | None:
        return self.base.cloud(task, down, private)

    def dpsgd(self, task: Task) -> DPSGD | None:
        return self.base.dpsgd(task)

    def host(self, server: Any, newcomers: Cohort, up: Any | None) -> Any:
        return self.base.host(server, newcomers, up)

    def adapt(self, task: Task, down: Any, private: Any | None) -> tuple[Any | None, Any]:
        return self.base.adapt(task, down, private)

    def refusal(self, roster: Roster, model: Model) -> str | None:
        return self.base.refusal(roster, model)

    def trace(self, server: Any, everyone: Cohort, private: Any) -> Mapping[str, Tensor]:
        return self.base.trace(server, everyone, private)
