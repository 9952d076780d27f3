"""pFedMe: each silo's loss is replaced by its Moreau envelope, whose solution is the personal model.

T. Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020.

The paper asks for θ_i up to an accuracy ν and leaves the way open: here, as in its published code, K gradient steps on
the mini-batch, starting where those of the mini-batch before ended (in a round's first: at w). The pull of each is an
exact proximal step, θ ← (θ − r ∇f + r λ w) / (1 + r λ) at the rate r; that code's explicit step is its first order. And
w moves towards θ by the share ηλ, at most all the way: beyond 1 the paper's step overshoots. That code also adds a
weight decay of 0.001 to these steps and weights the server's mean by samples; the paper does neither, nor does this:
the mean is uniform over those who replied. In the paper all silos train and some of them upload; here only those that
are asked train. η is the learning rate of the local optimiser, which steps along ∇F_i(w) = λ(w − θ_i).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.engine.method import Batch, Cohort, Model, Predictor, Private, Roster, State, Task, spread
from coterie.engine.solver import SGD, Gradient, NoState
from coterie.methods.parts.averaging import Global, GlobalDown, GlobalModel, ModelUp, global_predictor
from coterie.options import option
from coterie.wire import Record, rows


class Solution(Private):
    """A silo's personal model."""

    theta: Tensor = rows("its personal model θ_i", role="model")


class Envelope(State):
    """The local model and the solution that follows it."""

    w: Tensor = rows("the local model w_i", role="model")
    theta: Tensor = rows("the personal model θ_i", role="model")
    opt: Record


@dataclass(frozen=True)
class PFedMe(GlobalModel[Solution, Envelope]):
    """Personal models on a spring to a global one that moves towards them."""

    by_columns = True
    paper = "T. Dinh et al., NeurIPS 2020"
    summary = "a personal model near a global one, by Moreau envelopes of the silos' losses"
    lr_by_row = True

    lam: float = option(15.0, "λ, how strongly θ_i is held near w_i", above=0)
    inner_steps: int = option(5, "K, gradient steps towards θ_i on each mini-batch", low=1)
    inner_lr: float = option(0.1, "their rate", above=0)
    beta: float = option(1.0, "β, the server's step towards the mean of the silos' models", above=0)

    def receive(self, server: Global, cohort: Cohort, up: ModelUp) -> Global:
        mean = up.w.mean(0)
        mixed = (1 - self.beta) * server.w + self.beta * mean  # Algorithm 1: w ← (1 − β) w + β Σ_{i∈S} w_i / S
        weights = cohort.model.layout.trained
        # β > 1 extrapolates, and a variance must not become negative
        return server.replace(w=torch.cat([mixed[:weights], mean[weights:]]))

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Solution:
        return Solution(theta=model.starts(roster.seed, roster.take(rows).names, common=True))

    def begin(self, task: Task, down: GlobalDown, private: Solution | None) -> Envelope:
        w = spread(down.w, task.k)
        return Envelope(w=w, theta=w, opt=task.optimizer.init(w))  # Algorithm 1: w_{i,0} = w

    def step(self, task: Task, state: Envelope, batch: Batch) -> Envelope:
        theta, lam = state.theta, state.w.new_full((task.k,), self.lam)
        for _ in range(self.inner_steps):
            # Algorithm 1: θ̃_i(w) = argmin_θ f(θ; D) + λ/2 ‖θ − w‖²
            g = task.grad(theta, batch).pulled(state.w, lam)
            theta, _ = SGD().step(theta, g, NoState(), self.inner_lr)
        # Algorithm 1: w ← w − ηλ(w − θ), ηλ at most 1; BatchNorm's statistics are those that θ has seen
        rate = torch.as_tensor(batch.lr, dtype=theta.dtype, device=theta.device).reshape(-1, 1)
        pull = Gradient((1 / rate).clamp_max(self.lam) * (state.w - theta), g.losses, g.buffers)
        w, opt = task.optimizer.step(state.w, pull, state.opt, batch.lr)
        return Envelope(w=w, theta=theta, opt=opt)

    def end(self, task: Task, state: Envelope, down: GlobalDown, private: Solution) -> tuple[ModelUp, Solution]:
        return ModelUp(w=state.w), Solution(theta=state.theta)

    def personal(self, task: Task, down: GlobalDown, private: Solution) -> Predictor:
        return Predictor(models=private.theta)

    def cloud(self, task: Task, down: GlobalDown, private: Solution) -> Predictor:
        return global_predictor(task, down)

    def adapt(self, task: Task, down: GlobalDown, private: Solution | None) -> tuple[None, Solution]:
        """A newcomer gets the global model and finds its θ as the others do in a round, sending nothing."""
        state = task.run(self.step, self.begin(task, down, None), "arrive")
        return None, Solution(theta=state.theta)
