"""FedAvg: one global model, the mean of the silos' weighted by their samples.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from dataclasses import dataclass
from typing import ClassVar

from coterie.engine.method import Batch, Nothing, Predictor, Task, spread
from coterie.engine.task import Weights, plain_step
from coterie.methods.parts.averaging import GlobalDown, GlobalModel, ModelUp, global_predictor


@dataclass(frozen=True)
class FedAvg(GlobalModel[Nothing, Weights]):
    """One global model for all."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    summary: ClassVar[str] = "one global model, the sample-weighted mean of the silos' models"
    lr_by_row: ClassVar[bool] = True
    by_gradients: ClassVar[bool] = True

    def begin(self, task: Task, down: GlobalDown, private: Nothing) -> Weights:
        w = spread(down.w, task.k)
        return Weights(w=w, opt=task.optimizer.init(w))

    def step(self, task: Task, state: Weights, batch: Batch) -> Weights:
        return plain_step(task, state, batch)  # Algorithm 1, ClientUpdate: w ← w − η ∇ℓ(w; b)

    def end(self, task: Task, state: Weights, down: GlobalDown, private: Nothing) -> tuple[ModelUp, Nothing]:
        return ModelUp(w=state.w), private

    def personal(self, task: Task, down: GlobalDown, private: Nothing) -> Predictor:
        return global_predictor(task, down)

    def adapt(self, task: Task, down: GlobalDown, private: Nothing | None) -> tuple[None, Nothing]:
        """A newcomer gets the global model."""
        return None, Nothing()
