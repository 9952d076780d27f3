"""Per-FedAvg: a global model trained to be good after one gradient step on a silo's own data (MAML).

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020.

The outer rate β is the learning rate of the local optimiser, and the meta-gradient goes through that optimiser.
The paper draws D, D' and D'' independently; here one mini-batch is dealt out to them in turn, sample by sample: halves
D and D' for `fo`, which needs no D'', thirds for `hf`. A batch with fewer than two samples for each part serves whole
as each of them. Algorithm 1 has the Hessian itself, for which the paper's experiments take one of these two variants.
With `steps` > 1 (the paper: "one or a few") training takes all of them on D, and `hf` applies I − α∇² at each.
The personal model takes its steps on the mean gradient of all own training data (eq. 3); the paper's experiments take a
stochastic one. The server's mean is uniform over those who replied, as in the paper (not weighted by samples).
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.engine.method import Batch, Cohort, Nothing, Predictor, State, Task, spread
from coterie.engine.solver import moved
from coterie.engine.task import Weights, stepped
from coterie.methods.parts.averaging import Global, GlobalDown, ModelUp, OneModel, global_predictor
from coterie.options import option
from coterie.wire import rows


class Slope(State):
    """A pass over a silo's data that adds up the gradient at one model."""

    w: Tensor = rows("the model", role="model")
    total: Tensor = rows("the sum of the samples' gradients", role="change")


@dataclass(frozen=True)
class PerFedAvg(OneModel[Weights]):
    """A global model that each silo makes its own by a gradient step."""

    by_columns = True
    paper = "Fallah et al., NeurIPS 2020"
    summary = "a global model trained to be good after one gradient step on a silo's own data"
    lr_by_row = True

    variant: Literal["hf", "fo"] = option("hf", "the Hessian term by differences of gradients, or left out")
    alpha: float = option(0.01, "α, the rate of the step that makes the model personal", low=0)
    steps: int = option(1, "how many such steps", low=1)
    delta: float = option(1e-3, "δ, how far apart the two gradients of hf are taken, per unit of gradient", above=0)

    def receive(self, server: Global, cohort: Cohort, up: ModelUp) -> Global:
        return Global(w=up.w.mean(0))  # Algorithm 1: w_{k+1} = 1/(rn) Σ_i w_i, over those who replied

    @property
    def _parts(self) -> int:
        return 3 if self.variant == "hf" else 2

    def fewest(self, samples: int, steps: tuple[int, ...]) -> int:
        return min(step if step < 2 * self._parts else step // self._parts for step in steps)

    def step(self, task: Task, state: Weights, batch: Batch) -> Weights:
        inner, outer, *third = dealt(task, batch, self._parts)
        path = [state.w]
        for _ in range(self.steps):
            g = task.grad(path[-1], inner)
            path.append(moved(path[-1], self.alpha * g.grads, g))  # Algorithm 1: w̃ = w − α ∇f(w, D)
        gradient = task.grad(path.pop(), outer)  # ∇f(w̃, D')
        for part in third:
            for w in reversed(path):
                # Algorithm 1: (I − α ∇²f(w, D'')) ∇f(w̃, D')
                gradient = gradient + -self.alpha * self.bent(task, w, gradient.grads, part)
        return stepped(task, state, gradient, batch)

    def bent(self, task: Task, w: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """∇²f(w) v without the Hessian: [∇f(w + δv) − ∇f(w − δv)] / 2δ (HF-MAML)."""
        pair = torch.stack([w + self.delta * v, w - self.delta * v], 1)
        ahead, behind = task.grad(pair, batch).grads.unbind(1)
        return (ahead - behind) / (2 * self.delta)

    def personal(self, task: Task, down: GlobalDown, private: Nothing) -> Predictor:
        w, n = spread(down.w, task.k), task.counts()[:, None]
        for _ in range(self.steps):
            around = task.run(add_up, Slope(w=w, total=torch.zeros_like(w)), "personal", 1, every_sample=True)
            w = around.w - self.alpha * around.total / n  # eq. 3: w − α ∇f_i(w)
        return Predictor(models=w)

    def cloud(self, task: Task, down: GlobalDown, private: Nothing) -> Predictor:
        return global_predictor(task, down)


def add_up(task: Task, state: Slope, batch: Batch) -> Slope:
    """One mini-batch's part of the gradient of all data."""
    g = task.grad(state.w, batch)
    w = moved(state.w, torch.zeros_like(state.w), g)
    return state.replace(w=w, total=state.total + batch.mask.sum(1, keepdim=True) * g.grads)


def dealt(task: Task, batch: Batch, parts: int) -> list[Batch]:
    """A mini-batch dealt out sample by sample; a row too short for two samples in each part is whole in all of them."""
    count = batch.mask.sum(1, keepdim=True)  # a row's samples come before its filling
    b, whole = batch.mask.shape[1], count < 2 * parts
    place = torch.arange(max(-(-b // parts), min(b, 2 * parts - 1)), device=batch.x.device)
    silo = torch.arange(task.k, device=batch.x.device)[:, None]
    made = []
    for part in range(parts):
        index = torch.where(whole, place, part + parts * place)
        mask = index < count
        if task.model.couples_samples and not batch.ragged:  # rows are equally long then, and must not be filled
            index, mask = index[:, mask[0]], mask[:, mask[0]]
        index = index.clamp_max(b - 1)
        picked = {name: getattr(batch, name)[silo, index] for name in ("x", "y", "index")}
        made.append(replace(batch, mask=mask.to(batch.mask.dtype), **picked))
    return made
