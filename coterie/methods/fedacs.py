"""FedACS: attention-based client selection. A silo starts each round from the silos whose models point its way.

Chen, Li and Shen, "Personalized Federated Learning with Attention-based Client Selection" (equations by its numbers).

The paper does not publish its p: 0.5 is ours. Its eq. 4 assumes that s_ii = 1 always exceeds δ; when δ = 1 (all models
equal, or p near 1) nobody does, and a silo keeps itself. Where δ < 0 a model that points away is taken in with its
negative weight, as eq. 4 has it, unless the weights of a silo sum to nothing or less: that silo keeps itself. Eq. 4 is
eq. 3 with α = 1; local training takes the round's epochs of steps where eq. 5 writes one. `warmup_epochs` is FedAMP's.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.engine.method import Batch, Cohort, Task
from coterie.engine.task import Weights, begun, plain_step
from coterie.methods.parts.attention import cosines
from coterie.methods.parts.message_passing import CloudDown, MessagePassing, Models, Personal
from coterie.options import option

ROUNDING = 1e-12  # two cosines that differ by less are equal


@dataclass(frozen=True)
class FedACS(MessagePassing[Weights]):
    """Each silo's cloud model is a mixture of the models most aligned with its own; it is where training starts."""

    by_columns = True
    paper = "Chen et al., 2023"
    summary = "each silo starts from a mixture of the models most aligned with its own"
    lr_by_row = True

    quantile: float = option(0.5, "p; δ is the p-quantile of all cosines, and only those above it count", low=0, high=1)

    def attention(self, w: Tensor) -> Tensor:
        scores = cosines(w).fill_diagonal_(1)  # Algorithm 1, line 6
        delta = float(np.quantile(scores.cpu().numpy(), self.quantile))  # line 7
        chosen = torch.where(scores > delta + ROUNDING, scores, 0)
        total = chosen.sum(1, keepdim=True)
        alone = torch.eye(len(w), dtype=scores.dtype, device=w.device)
        return torch.where(total > ROUNDING, chosen / total, alone)  # eq. 4's weights; a silo always keeps itself

    def send(self, server: Models, cohort: Cohort) -> CloudDown:
        w = server.w[cohort.ids]  # line 5: only those who take part in this round
        return CloudDown(u=self.attention(cohort.model.layout.weights(w)).to(w.dtype) @ w)  # eq. 4

    def begin(self, task: Task, down: CloudDown, private: Personal) -> Weights:
        return begun(task, self.started(task, down.u, private))

    def step(self, task: Task, state: Weights, batch: Batch) -> Weights:
        return plain_step(task, state, batch)  # eq. 5: w ← w − β ∇F_i(w), from u_i
