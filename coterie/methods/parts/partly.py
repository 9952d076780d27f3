"""Training some columns of a model while the others stand still."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.engine.method import Batch, Columns, Nothing, Predictor, Task, spread
from coterie.engine.task import Weights
from coterie.methods.parts.averaging import GlobalDown, GlobalModel, ModelUp, global_predictor


def step_on(columns: Columns) -> Callable[[Task, Weights, Batch], Weights]:
    """One optimiser step on these columns; nothing else of a row moves, not even BatchNorm's statistics."""

    def step(task: Task, state: Weights, batch: Batch) -> Weights:
        w, opt = task.optimizer.step(state.w, task.grad(state.w, batch), state.opt, batch.lr, only=columns)
        return state.replace(w=w, opt=opt)

    return step


def begin_on(task: Task, w: Tensor, columns: Columns) -> Weights:
    """Rows (k, d) before the first of such steps."""
    return Weights(w=w, opt=task.optimizer.init(w, only=columns))


def fit_on(task: Task, w: Tensor, columns: Columns, purpose: str, epochs: int | None = None) -> Tensor:
    """Rows (k, d) after some epochs (default: a round's) of such steps."""
    return task.run(step_on(columns), begin_on(task, w, columns), purpose, epochs).w


@dataclass(frozen=True)
class PartStill(GlobalModel[Nothing, Weights]):
    """FedAvg in which a part of the model never moves."""

    by_columns: ClassVar[bool] = True
    lr_by_row: ClassVar[bool] = True
    by_gradients: ClassVar[bool] = True

    still: str

    def begin(self, task: Task, down: GlobalDown, private: Nothing) -> Weights:
        return begin_on(task, spread(down.w, task.k), self._moving(task))

    def step(self, task: Task, state: Weights, batch: Batch) -> Weights:
        return step_on(self._moving(task))(task, state, batch)

    def end(self, task: Task, state: Weights, down: GlobalDown, private: Nothing) -> tuple[ModelUp, Nothing]:
        return ModelUp(w=state.w), private

    def personal(self, task: Task, down: GlobalDown, private: Nothing) -> Predictor:
        return global_predictor(task, down)

    def adapt(self, task: Task, down: GlobalDown, private: Nothing | None) -> tuple[None, Nothing]:
        """A newcomer gets the global model."""
        return None, Nothing()

    def _moving(self, task: Task) -> Columns:
        layout = task.model.layout
        return layout.columns(layout.names - {*task.model.columns(self.still, empty=True).names})
