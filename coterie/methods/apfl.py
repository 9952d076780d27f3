"""APFL: each silo mixes a model of its own with the global one, and learns how much of each it needs.

Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", 2020 (arXiv 2003.13461, Algorithm 1).

α_i takes one gradient step in a round, on the round's first mini-batch, by eq. 10: v_i and w_i as they are before
that batch, the local learning rate, then clipped to [0, 1]. The published code takes it then too, but adds 0.02 α_i
to the gradient and mixes the two models' outputs; this mixes their weights, as the paper does. The paper's mean of
the w_i is uniform; here it is FedAvg's, weighted by samples, so that α = 0 is FedAvg. α_i starts at 0.5, the published
code's default. BatchNorm's statistics are mixed like weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.engine.across import all_silos
from coterie.engine.method import Batch, Cohort, Model, Predictor, Private, Roster, State, Task, spread
from coterie.methods.parts.averaging import Global, GlobalDown, GlobalModel, ModelUp
from coterie.options import option
from coterie.wire import Record, rows


class MixedPrivate(Private):
    """A silo's own model and its weight in the mixture."""

    v: Tensor = rows("its own model v_i", role="model")
    alpha: Tensor | None = rows("α_i, the weight of v_i in its personal model, where it is learned", default=None)


class Pair(State):
    """The two models in training, and their mixture's weight."""

    models: Tensor = rows("w_i, its copy of the global model, and v_i", "2", role="model")
    alpha: Tensor = rows("α_i")
    due: Tensor = rows("1 until α_i has taken its step of the round, then 0")
    opt: Record


def mixed(v: Tensor, w: Tensor, alpha: Tensor) -> Tensor:
    """The personal model v̄_i = α_i v_i + (1 − α_i) w."""
    return alpha[:, None] * v + (1 - alpha[:, None]) * w


@dataclass(frozen=True)
class APFL(GlobalModel[MixedPrivate, Pair]):
    """A mixture, in weights, of an own model and the global one."""

    by_columns = True
    paper = "Deng et al., 2020"
    summary = "a learned mixture of the silo's own model and the global one"
    lr_by_row = True
    by_gradients = True

    alpha: float = option(0.5, "α_i, the weight of the silo's own model: at the start, or throughout", low=0, high=1)
    learned: bool = option(True, "each silo learns its α_i; false: it stays as given")

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> MixedPrivate:
        return self._new(model.starts(roster.seed, roster.take(rows).names, common=True))

    def begin(self, task: Task, down: GlobalDown, private: MixedPrivate) -> Pair:
        models = torch.stack([spread(down.w, task.k), private.v], 1)
        alpha = self._weight(private)
        due = torch.full_like(alpha, float(self.learned))
        return Pair(models=models, alpha=alpha, due=due, opt=task.optimizer.init(models))

    def step(self, task: Task, state: Pair, batch: Batch) -> Pair:
        w, v = state.models.unbind(1)
        gradient = task.grad(torch.stack([w, mixed(v, w, state.alpha)], 1), batch)
        # Algorithm 1: w_i ← w_i − η ∇f_i(w_i), v_i ← v_i − η ∇_v f_i(v̄_i), where ∇_v f_i(v̄_i) = α_i ∇f_i(v̄_i)
        share = torch.stack([torch.ones_like(state.alpha), state.alpha], 1)[..., None]
        models, opt = task.optimizer.step(state.models, gradient * share, state.opt, batch.lr)
        slope = ((v - w) * gradient.grads[:, 1]).sum(1)  # eq. 10: ∇_α f_i(v̄_i) = ⟨v_i − w_i, ∇f_i(v̄_i)⟩
        alpha = (state.alpha - batch.lr * state.due * slope).clamp(0, 1)
        return Pair(models=models, alpha=alpha, due=torch.zeros_like(state.due), opt=opt)

    def end(self, task: Task, state: Pair, down: GlobalDown, private: MixedPrivate) -> tuple[ModelUp, MixedPrivate]:
        w, v = state.models.unbind(1)
        return ModelUp(w=w), MixedPrivate(v=v, alpha=state.alpha if self.learned else None)

    def personal(self, task: Task, down: GlobalDown, private: MixedPrivate) -> Predictor:
        return Predictor(models=mixed(private.v, spread(down.w, task.k), self._weight(private)))

    def adapt(self, task: Task, down: GlobalDown, private: MixedPrivate | None) -> tuple[None, MixedPrivate]:
        """A newcomer starts its own model from the global one and trains for one round."""
        arriving = self._new(spread(down.w, task.k))
        state = task.run(self.step, self.begin(task, down, arriving), "arrive")
        return None, self.end(task, state, down, arriving)[1]

    def trace(self, server: Global, everyone: Cohort, private: MixedPrivate | None) -> dict[str, Tensor]:
        """α_i of every silo."""
        return {} if private is None else {"alpha": all_silos(self._weight(private))}

    def _new(self, v: Tensor) -> MixedPrivate:
        return MixedPrivate(v=v, alpha=v.new_full((len(v),), self.alpha) if self.learned else None)

    def _weight(self, private: MixedPrivate) -> Tensor:
        v = private.v
        return v.new_full((len(v),), self.alpha) if private.alpha is None else private.alpha
