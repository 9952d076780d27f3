"""FedAMP: federated attentive message passing. Silos that are alike learn more from each other.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021 (equations by its numbers),
with the experimental weights of its preprint, "Personalized Federated Learning: An Attentive Collaboration Approach".

`weights="attention"` is how the preprint ran its experiments; its eq. 9 divides by 2σ where this divides by σ, and τ
is the weight on the others (its eq. 11 and tables). `weights="step"` is eq. 5 with a given α_k; λ of eq. 6 is then
α/β. With `warmup_epochs` a silo's first round is one of training alone, and the next attends over these models (the
preprint's start); with `common_init=false` silos start apart (Algorithm 1). The pull of eq. 6 is an exact proximal
step, with SGD w ← (w − η ∇F_i + η/β u_i) / (1 + η/β): stable for every β, as the schedule needs; a step along its
gradient is its first order.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.engine.method import Batch, Task
from coterie.errors import BadInput
from coterie.methods.parts.attention import INDUCING, attend, squared_distances
from coterie.methods.parts.message_passing import CloudDown, MessagePassing, Personal
from coterie.methods.parts.proximal import Pulled, at_centre, pulled_step
from coterie.methods.parts.schedules import StepDecay, at
from coterie.options import option


@dataclass(frozen=True)
class FedAMP(MessagePassing[Pulled]):
    """Each silo's cloud model is a mixture of the models that lie near its own."""

    by_columns = True
    paper = "Huang et al., AAAI 2021"
    summary = "a cloud model per silo, mixed from the models near its own; the silo is pulled towards it"
    lr_by_row = True

    weights: Literal["attention", "step"] = option("attention", "softmax of log A', or eq. 5 with a given α")
    function: Literal["negative-exponential", "tamed-root", "scad", "mcp"] = option("negative-exponential", "A")
    sigma: float | Literal["auto"] = option("auto", "σ, A's scale; auto: by the round's median distance", above=0)
    sigma_factor: float = option(1.0, "what auto multiplies the median with", above=0)
    tau: float = option(0.5, "τ, the weight on the others (attention)", low=0, high=1)
    alpha: float = option(0.1, "α, the step size of eq. 3 (step)", low=0)
    clip: bool = option(False, "scale the others' weights down where α is too large, instead of an error (step)")
    beta: float | StepDecay = option(StepDecay(1e4, 0.1, 30, 10.0), "β_k; 1/β is the strength of the pull", above=0)

    def attention(self, w: Tensor) -> Tensor:
        distances = squared_distances(w)
        function = INDUCING[self.function]
        scale = self.sigma_factor * function.scale(distances) if self.sigma == "auto" else self.sigma
        if self.weights == "attention":
            # the preprint's eq. 9: z_i = Σ_{j≠i} softmax_j(log A'(‖w_i − w_j‖²)) w_j, u_i = (1 − τ) w_i + τ z_i
            return attend(function.log_slope(distances, scale), self.tau)
        xi = self.alpha * function.slope(distances, scale).fill_diagonal_(0)  # eq. 7
        others = xi.sum(1)
        if (others > 1).any():
            if not self.clip:
                raise BadInput(
                    f"fedamp: alpha = {self.alpha:g} makes a self-weight negative; the largest that works in this "
                    f"round is {self.alpha / float(others.max()):.3g} (or set clip = true)"
                )
            xi = xi / others.clamp_min(1)[:, None]
        return xi + torch.diag(1 - xi.sum(1))  # ξ_ii = 1 − Σ_{j≠i} ξ_ij

    def begin(self, task: Task, down: CloudDown, private: Personal) -> Pulled:
        strength = self.pull(private, 1 / at(self.beta, self.iteration(task.round)))
        return at_centre(task, self.started(task, down.u, private), strength)

    def step(self, task: Task, state: Pulled, batch: Batch) -> Pulled:
        return pulled_step(task, state, batch)  # eq. 6: argmin F_i(w) + 1/(2β_k) ‖w − u_i‖²
