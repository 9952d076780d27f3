"""Training some columns of a model while the others stand still."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from coterie.engine.method import Batch, Columns, Nothing, Task, spread
from coterie.engine.task import Weights, begun, stepped
from coterie.methods.parts.averaging import GlobalDown, OneModel


def step_on(columns: Columns) -> Callable[[Task, Weights, Batch], Weights]:
    """One optimiser step on these columns; nothing else of a row moves, not even BatchNorm's statistics."""

    def step(task: Task, state: Weights, batch: Batch) -> Weights:
        return stepped(task, state, task.grad(state.w, batch), batch, columns)

    return step


def fit_on(task: Task, w: Tensor, columns: Columns, purpose: str, epochs: int | None = None) -> Tensor:
    """Rows (k, d) after some epochs (default: a round's) of such steps."""
    return task.run(step_on(columns), begun(task, w, columns), purpose, epochs).w


@dataclass(frozen=True)
class PartStill(OneModel[Weights]):
    """FedAvg in which a part of the model never moves."""

    by_columns = True
    lr_by_row = True
    by_gradients = True

    still: str

    def begin(self, task: Task, down: GlobalDown, private: Nothing) -> Weights:
        return begun(task, spread(down.w, task.k), self._moving(task))

    def step(self, task: Task, state: Weights, batch: Batch) -> Weights:
        return step_on(self._moving(task))(task, state, batch)

    def _moving(self, task: Task) -> Columns:
        layout = task.model.layout
        return layout.columns(layout.names - {*task.model.columns(self.still, empty=True).names})
