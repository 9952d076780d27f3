"""FedAvg-local: FedAvg in which a silo deploys its own copy after local training, not the mean.

The baseline of "Adapt to Adaptation: Learning to Personalize for Cross-Silo Federated Learning" (APPLE), Section 4.1.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.engine.method import Model, Private, Roster, Task, spread
from coterie.engine.task import Weights
from coterie.methods.parts.averaging import GlobalDown, GlobalModel, ModelUp
from coterie.wire import rows


class Copy(Private):
    """The silo's copy of the global model as its last local training left it."""

    w: Tensor = rows("its copy of the global model after local training", role="model")


@dataclass(frozen=True)
class FedAvgLocal(GlobalModel[Copy, Weights]):
    """FedAvg; each silo deploys its own copy after local training."""

    paper: ClassVar[str] = "the baseline of APPLE (2021)"
    summary: ClassVar[str] = "FedAvg, but a silo deploys its own copy after local training"
    by_gradients: ClassVar[bool] = True

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Copy:
        return Copy(w=model.starts(roster.seed, roster.take(rows).names, common=True))

    def end(self, task: Task, state: Weights, down: GlobalDown, private: Copy) -> tuple[ModelUp, Copy]:
        return ModelUp(w=state.w), Copy(w=state.w)

    def adapt(self, task: Task, down: GlobalDown, private: Copy | None) -> tuple[None, Copy]:
        """A newcomer trains the global model for one round, as the others did."""
        return None, Copy(w=task.fit(spread(down.w, task.k), "arrive"))
