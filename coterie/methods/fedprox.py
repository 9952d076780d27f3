"""FedProx: FedAvg whose silos are pulled back to the global model while they train.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. Every silo does the same number of epochs
(the paper's γ-inexact solutions are those of its local optimiser). The pull is an exact proximal step, with SGD
w ← (w − η ∇F_k + η μ w^t) / (1 + η μ); a step along its gradient, as in the published code, is its first order.
"""

from dataclasses import dataclass

from coterie.engine.method import Batch, Nothing, Task, spread
from coterie.methods.parts.averaging import GlobalDown, OneModel
from coterie.methods.parts.proximal import Pulled, at_centre, pulled_step
from coterie.options import option


@dataclass(frozen=True)
class FedProx(OneModel[Pulled]):
    """One global model; local loss + μ/2 ‖w − w_global‖²."""

    paper = "Li et al., MLSys 2020"
    summary = "FedAvg with a pull towards the global model during local training"
    lr_by_row = True
    by_gradients = True

    mu: float = option(0.1, "μ, the strength of the pull", low=0)

    def begin(self, task: Task, down: GlobalDown, private: Nothing) -> Pulled:
        return at_centre(task, spread(down.w, task.k), self.mu)

    def step(self, task: Task, state: Pulled, batch: Batch) -> Pulled:
        return pulled_step(task, state, batch)  # eq. 2: F_k(w) + μ/2 ‖w − w^t‖²
