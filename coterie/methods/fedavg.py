"""FedAvg: one global model, the mean of the silos' weighted by their samples.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from dataclasses import dataclass

from coterie.engine.method import Batch, Task
from coterie.engine.task import Weights, plain_step
from coterie.methods.parts.averaging import OneModel


@dataclass(frozen=True)
class FedAvg(OneModel[Weights]):
    """One global model for all."""

    paper = "McMahan et al., AISTATS 2017"
    summary = "one global model, the sample-weighted mean of the silos' models"
    lr_by_row = True
    by_gradients = True

    def step(self, task: Task, state: Weights, batch: Batch) -> Weights:
        return plain_step(task, state, batch)  # Algorithm 1, ClientUpdate: w ← w − η ∇ℓ(w; b)
