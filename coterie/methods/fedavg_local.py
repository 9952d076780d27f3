"""FedAvg-local: FedAvg in which a silo deploys its own copy after local training, not the mean.

The baseline of "Adapt to Adaptation: Learning to Personalize for Cross-Silo Federated Learning" (APPLE), Section 4.1.
"""

from dataclasses import dataclass

from coterie.engine.method import Task, spread
from coterie.engine.task import Weights
from coterie.methods.parts.averaging import Copy, GlobalDown, OwnCopies


@dataclass(frozen=True)
class FedAvgLocal(OwnCopies[Weights]):
    """FedAvg; each silo deploys its own copy after local training."""

    paper = "the baseline of APPLE (2021)"
    summary = "FedAvg, but a silo deploys its own copy after local training"
    by_gradients = True

    def adapt(self, task: Task, down: GlobalDown, private: Copy | None) -> tuple[None, Copy]:
        """A newcomer trains the global model for one round, as the others did."""
        return None, Copy(w=task.fit(spread(down.w, task.k), "arrive"))
