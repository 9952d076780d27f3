"""Separate training: every silo alone. The yardstick of all the others.

The baseline of Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021, Section 7.
"""

from dataclasses import dataclass

from torch import Tensor

from coterie.engine.method import Method, Model, NothingDown, NothingKept, NothingUp, Roster, Task
from coterie.engine.task import Weights, begun
from coterie.options import option
from coterie.wire import Private, rows


class SeparatePrivate(Private):
    """A silo's own model."""

    w: Tensor = rows("its model", role="model")


@dataclass(frozen=True)
class Separate(Method[NothingKept, NothingDown, NothingUp, SeparatePrivate, Weights]):
    """Every silo trains alone on its own data."""

    paper = "the baseline of Huang et al., AAAI 2021"
    summary = "every silo alone; nothing leaves it"

    common_init: bool = option(True, "all silos start from one random model")

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> SeparatePrivate:
        return SeparatePrivate(w=model.starts(roster.seed, roster.take(rows).names, self.common_init))

    def begin(self, task: Task, down: NothingDown, private: SeparatePrivate) -> Weights:
        return begun(task, private.w)

    def end(
        self, task: Task, state: Weights, down: NothingDown, private: SeparatePrivate
    ) -> tuple[NothingUp, SeparatePrivate]:
        return NothingUp(), SeparatePrivate(w=state.w)

    def adapt(self, task: Task, down: NothingDown, private: SeparatePrivate | None) -> tuple[None, SeparatePrivate]:
        """A newcomer trains alone for one round."""
        return None, SeparatePrivate(w=task.fit(task.start(self.common_init), "arrive"))
