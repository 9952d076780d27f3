"""MR-MTL: mean-regularized multi-task learning. Each silo's own model is pulled towards the mean of all of them.

Liu, Hu, Wu and Smith, "On Privacy and Personalization in Cross-Silo Federated Learning", NeurIPS 2022: silo k minimises
F_k(w_k) + λ/2 ‖w_k − w̄‖². A silo goes on from its own model, never from w̄, which it is only pulled towards. The mean is
that of the models of those who replied, weighted by samples, so that an endless pull is FedAvg. The published code adds
up the mean of the silos' changes instead, from a start of its own: with different starts that is no mean of the models.
The pull is an exact proximal step, with SGD w_k ← (w_k − η ∇F_k + η λ w̄) / (1 + η λ), of which a step along its
gradient is the first order. The paper's noise on every sample's gradient is `privacy = {level = "record"}`.
"""

from dataclasses import dataclass

from torch import Tensor

from coterie.engine.across import all_silos
from coterie.engine.method import Batch, Cohort, Predictor, Task, spread
from coterie.methods.parts.averaging import Copy, Global, GlobalDown, OwnCopies, global_predictor
from coterie.methods.parts.proximal import Pulled, at_centre, pulled_step
from coterie.options import option


@dataclass(frozen=True)
class MRMTL(OwnCopies[Pulled]):
    """A personal model for each silo, pulled towards the mean of all personal models."""

    by_columns = True
    paper = "Liu et al., NeurIPS 2022"
    summary = "each silo's own model, pulled towards the mean of all silos' own models"
    lr_by_row = True
    from_own = True  # all of it, with λ = 0
    by_gradients = True

    lam: float = option(1.0, "λ, the strength of the pull towards the mean", low=0)

    def begin(self, task: Task, down: GlobalDown, private: Copy) -> Pulled:
        return at_centre(task, spread(down.w, task.k), self.lam).replace(w=private.w)

    def step(self, task: Task, state: Pulled, batch: Batch) -> Pulled:
        return pulled_step(task, state, batch)  # F_k(w) + λ/2 ‖w − w̄‖²

    def cloud(self, task: Task, down: GlobalDown, private: Copy) -> Predictor:
        return global_predictor(task, down)

    def adapt(self, task: Task, down: GlobalDown, private: Copy | None) -> tuple[None, Copy]:
        """A newcomer starts from the mean and trains for one round, pulled towards it."""
        return None, Copy(w=task.run(pulled_step, at_centre(task, spread(down.w, task.k), self.lam), "arrive").w)

    def trace(self, server: Global, everyone: Cohort, private: Copy | None) -> dict[str, Tensor]:
        """How far each silo's model is from the mean: ‖w_k − w̄‖."""
        return {} if private is None else {"distance": all_silos((private.w - server.w).norm(dim=1))}
