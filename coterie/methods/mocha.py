"""MOCHA: federated multi-task learning of linear models, whose relationships are learned with them.

Smith, Chiang, Sanjabi and Talwalkar, "Federated Multi-Task Learning", NeurIPS 2017.

The problem is the paper's (eq. 1 and 2): min_{W,Ω} Σ_t F_t(w_t) + λ1 tr(W Ω Wᵀ) + λ2 ‖W‖², with the probabilistic prior
of its appendix on the tasks' covariance Σ = Ω⁻¹ ⪰ 0, tr Σ = 1, and the same alternation: W with Ω fixed, then Ω.
Where this differs:
- The W-step is solved in the primal, by the engine's mini-batch steps on F_t and the pull of R, not by the paper's
  SDCA steps on the dual. What keeps simultaneous steps safe is the same bound, stated for R: the coupling between tasks
  is replaced by ρ times its diagonal (the paper's σ', its code's rho).
- F_t is the mean of the silo's losses, as in the published code; eq. 1 writes their sum. The loss is the engine's
  (cross-entropy or squared: both convex), where the paper's experiments take the hinge loss.
- The eigenvalues of WᵀW get `smoothing` times their mean before the root is taken: with more silos than parameters, or
  silos all alike, Σ has no inverse otherwise, and the closer it comes to that the slower gradient steps get. The dual
  needs no inverse; the published code lifts negative eigenvalues only.
- R's part of a step, quadratic in w_t, is an exact proximal step, w ← (w − η ∇F_t + η s c) / (1 + η s), s (w − c) being
  its gradient: stable however strong the coupling is.
- The models start at zero (the published code's start), so that no common random start passes for a relationship; a
  silo not heard of yet is related to nobody.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.engine.method import Batch, Cohort, Down, Method, Model, Private, Roster, Server, Task
from coterie.methods.parts.attention import gram
from coterie.methods.parts.message_passing import PersonalUp
from coterie.methods.parts.proximal import Pulled, pulled_step
from coterie.options import option
from coterie.wire import rows


class AllTasks(Server):
    """The tasks' last models and how they are related."""

    w: Tensor = rows("the silo's last model w_t", role="model")
    sigma: Tensor = rows("the silo's row of Σ = Ω⁻¹, the covariance of the tasks", "m")


class Coupling(Down):
    """What the other tasks' models mean for this one: 2 λ1 (own w + message) is the pull of tr(W Ω Wᵀ)."""

    message: Tensor = rows("Σ_j Ω_tj w_j − ρ Ω_tt w_t, a weighted sum of silos' models", role="change")
    own: Tensor = rows("ρ Ω_tt, the weight of the silo's own model")


class TaskModel(Private):
    """A silo's own linear model."""

    w: Tensor = rows("its model w_t", role="model")


def relationship(w: Tensor, smoothing: float) -> Tensor:
    """Σ = (WᵀW)^½ / tr (WᵀW)^½, (m, m) in float64: the minimiser of tr(W Σ⁻¹ Wᵀ) with tr Σ = 1.

    A task still at zero, of which nothing is known, counts as one of average norm that is related to nobody.
    """
    inner = gram(w)
    norms = inner.diagonal()
    known = norms > 0
    typical = norms[known].mean() if bool(known.any()) else 1.0
    values, vectors = torch.linalg.eigh(inner + torch.diag(torch.where(known, 0, typical)))
    values = values.clamp_min(0)
    roots = (values + smoothing * values.mean()).sqrt()
    sigma: Tensor = (vectors * (roots / roots.sum())) @ vectors.T
    return sigma


@dataclass(frozen=True)
class MOCHA(Method[AllTasks, Coupling, PersonalUp, TaskModel, Pulled]):
    """A linear model per silo, regularised by a matrix of relationships that is learned from the models."""

    paper = "Smith et al., NeurIPS 2017"
    summary = "linear models only: one per silo, coupled by a learned matrix of task relationships"
    lr_by_row = True
    from_own = True  # all of it, with λ1 = 0

    lambda1: float = option(1e-2, "λ1, the strength of the coupling between tasks", low=0)
    lambda2: float = option(0.0, "λ2, the strength of the pull towards zero", low=0)
    omega_every: int = option(1, "rounds of the W-step between two updates of Ω", low=1)
    smoothing: float = option(0.1, "what is added to the eigenvalues of WᵀW, as a share of their mean", above=0)

    def open(self, roster: Roster, model: Model) -> AllTasks:
        w = torch.zeros(len(roster), model.width, dtype=model.dtype, device=model.device)
        return AllTasks(w=w, sigma=relationship(w, self.smoothing))

    def send(self, server: AllTasks, cohort: Cohort) -> Coupling:
        return _coupling(server.w, server.sigma, cohort.ids)

    def receive(self, server: AllTasks, cohort: Cohort, up: PersonalUp) -> AllTasks:
        w = server.w.index_copy(0, cohort.ids, up.w)  # a missing silo's last model stands in
        due = (cohort.round + 1) % self.omega_every == 0
        return AllTasks(w=w, sigma=relationship(w, self.smoothing) if due else server.sigma)

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> TaskModel:
        return TaskModel(w=torch.zeros(len(rows), model.width, dtype=model.dtype, device=model.device))

    def begin(self, task: Task, down: Coupling, private: TaskModel) -> Pulled:
        strength = 2 * (self.lambda1 * down.own + self.lambda2)
        # where the regulariser's gradient, strength × w + 2 λ1 × message, is zero; without a regulariser: anywhere
        centre = -2 * self.lambda1 * down.message / torch.where(strength > 0, strength, 1)[:, None]
        return Pulled(w=private.w, centre=centre, strength=strength, opt=task.optimizer.init(private.w))

    def step(self, task: Task, state: Pulled, batch: Batch) -> Pulled:
        return pulled_step(task, state, batch)  # F_t + λ1 tr(W Ω Wᵀ) + λ2 ‖W‖², the other tasks' models standing still

    def end(self, task: Task, state: Pulled, down: Coupling, private: TaskModel) -> tuple[PersonalUp, TaskModel]:
        return PersonalUp(w=state.w), TaskModel(w=state.w)

    def host(self, server: AllTasks, newcomers: Cohort, up: PersonalUp | None) -> Coupling:
        if up is None:
            alone = server.w.new_zeros(len(newcomers))
            return Coupling(message=alone[:, None].expand(-1, server.w.shape[1]), own=alone)
        parts = [torch.cat([server.w, newcomer[None]]) for newcomer in up.w]
        last = torch.tensor([len(server.w)], device=server.w.device)
        couplings = [_coupling(w, relationship(w, self.smoothing), last) for w in parts]
        return Coupling(message=torch.cat([t.message for t in couplings]), own=torch.cat([t.own for t in couplings]))

    def adapt(self, task: Task, down: Coupling, private: TaskModel | None) -> tuple[PersonalUp | None, TaskModel]:
        """A newcomer trains alone, is answered with what the members' models mean for it, and trains once more."""
        arriving = private is None
        start = TaskModel(w=torch.zeros_like(down.message)) if private is None else private
        state = task.run(self.step, self.begin(task, down, start), "arrive" if arriving else "settle")
        return PersonalUp(w=state.w) if arriving else None, TaskModel(w=state.w)

    def refusal(self, roster: Roster, model: Model) -> str | None:
        layers = [m for m in model.module.modules() if type(m) not in (nn.Sequential, nn.Flatten, nn.Identity)]
        if len(layers) == 1 and type(layers[0]) is nn.Linear:
            return None
        return (
            "works with linear models only (one nn.Linear layer, after nn.Flatten if need be), for which its problem "
            "is convex; take the model 'linear', or fedamp or fedacs for deeper ones"
        )

    def trace(self, server: AllTasks, everyone: Cohort, private: TaskModel | None) -> dict[str, Tensor]:
        return {"collaboration": server.sigma}


def _coupling(w: Tensor, sigma: Tensor, ids: Tensor) -> Coupling:
    """What the tasks at `ids` are sent, W and Σ being everyone's."""
    omega = torch.linalg.inv(sigma)
    diagonal = omega.diagonal()
    rho = (omega.abs().sum(1) / diagonal).max()  # Ω ⪯ ρ diag(Ω), so that all tasks may move at once
    own = (rho * diagonal)[ids]
    mixture = omega[ids].to(w.dtype) @ w
    return Coupling(message=mixture - own[:, None].to(w.dtype) * w[ids], own=own.to(w.dtype))
