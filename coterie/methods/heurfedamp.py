"""HeurFedAMP: FedAMP with cosine attention and a given self-weight, for deep networks.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021, Section 6 (equations by its
numbers). The self-weight ξ_ii is given as 1 − τ, as in the preprint's eq. 10-11; τ and β may differ from silo to silo.
The pull is an exact proximal step, as FedAMP's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.engine.method import Batch, Model, Roster, Task
from coterie.methods.parts.attention import attend, cosines
from coterie.methods.parts.message_passing import CloudDown, MessagePassing, Personal
from coterie.methods.parts.proximal import Pulled, at_centre, pulled_step
from coterie.methods.parts.schedules import StepDecay, at
from coterie.options import option


@dataclass(frozen=True)
class HeurFedAMP(MessagePassing[Pulled]):
    """Each silo's cloud model is a mixture of the models that point the way its own does."""

    by_columns = True
    paper = "Huang et al., AAAI 2021, Section 6"
    summary = "FedAMP with cosine attention and a given self-weight"
    lr_by_row = True

    sigma: float = option(10.0, "σ, the sharpness of the attention", above=0)
    tau: float | tuple[float, ...] = option(0.5, "τ, the weight on the others: one, or one per silo", low=0, high=1)
    beta: float | StepDecay | tuple[float, ...] = option(
        StepDecay(1e4, 0.1, 30, 10.0), "β_k, or one per silo; 1/β is the strength of the pull", above=0
    )

    def attention(self, w: Tensor) -> Tensor:
        tau = torch.as_tensor(self.tau, dtype=torch.float64, device=w.device)
        if tau.ndim and len(tau) < len(w):  # a newcomer, who has no τ of its own
            tau = torch.cat([tau, tau.mean(0, keepdim=True)])
        return attend(self.sigma * cosines(w), tau)  # eq. 8: (1 − ξ_ii) softmax_{j≠i}(σ cos(w_i, w_j))

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Personal:
        private = super().enroll(roster, model, rows)
        if not isinstance(self.beta, tuple):
            return private
        return private.replace(beta=torch.tensor(self.beta, dtype=model.dtype, device=model.device)[rows])

    def begin(self, task: Task, down: CloudDown, private: Personal) -> Pulled:
        if isinstance(self.beta, tuple):
            own = private.beta if private.beta is not None else torch.tensor(self.beta).mean()
            strength: Tensor | float = 1 / own
        else:
            strength = 1 / at(self.beta, self.iteration(task.round))
        return at_centre(task, self.started(task, down.u, private), self.pull(private, strength))

    def step(self, task: Task, state: Pulled, batch: Batch) -> Pulled:
        return pulled_step(task, state, batch)  # eq. 6: argmin F_i(w) + 1/(2β_k) ‖w − u_i‖²

    def refusal(self, roster: Roster, model: Model) -> str | None:
        for name, value in (("tau", self.tau), ("beta", self.beta)):
            if isinstance(value, tuple) and len(value) != len(roster):
                return f"{name} has {len(value)} values for {len(roster)} silos; give one, or one per silo"
        return None
