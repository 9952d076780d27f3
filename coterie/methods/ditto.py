"""Ditto: beside FedAvg's global model, each silo trains a model of its own that is pulled towards it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021 (Algorithm 1).

G is FedAvg's objective: the global model is the mean of the silos' weighted by their samples, and w_i is uploaded
where the paper uploads w_i − w^t, which is the same. v_i trains on the very mini-batches of w_i, as in the published
code; `personal_epochs` gives it the paper's own number of local iterations s. One λ for all silos: the paper's choice
of each silo's λ on its validation data is left out. The pull is an exact proximal step, with SGD
v_i ← (v_i − η ∇F_i + η λ w^t) / (1 + η λ), of which Algorithm 1's step along its gradient is the first order.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.engine.across import all_silos
from coterie.engine.method import Batch, Cohort, Model, Predictor, Private, Roster, Task, spread
from coterie.methods.parts.averaging import Global, GlobalDown, GlobalModel, ModelUp, global_predictor
from coterie.methods.parts.proximal import Pulled, at_centre, pulled_step
from coterie.options import option
from coterie.wire import rows


class DittoPrivate(Private):
    """A silo's personal model."""

    v: Tensor = rows("its personal model v_i", role="model")


@dataclass(frozen=True)
class Ditto(GlobalModel[DittoPrivate, Pulled]):
    """A personal model for each silo, pulled towards FedAvg's global model."""

    by_columns = True
    paper = "Li et al., ICML 2021"
    summary = "FedAvg, and beside it each silo's own model, pulled towards the global one"
    lr_by_row = True
    by_gradients = True

    lam: float = option(1.0, "λ, the strength of the pull of v_i towards the global model", low=0)
    personal_epochs: int | Literal["shared"] = option(
        "shared", "epochs of v_i in a round, in a loop of its own; shared: it steps together with w_i", low=1
    )

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> DittoPrivate:
        return DittoPrivate(v=model.starts(roster.seed, roster.take(rows).names, common=True))

    def begin(self, task: Task, down: GlobalDown, private: DittoPrivate) -> Pulled:
        w = spread(down.w, task.k)
        if self.personal_epochs != "shared":
            return at_centre(task, w, 0)
        models = torch.stack([w, private.v], 1)  # (k, 2, d): w_i is pulled with strength 0, v_i with λ
        strength = w.new_tensor([0, self.lam]).expand(task.k, 2)
        return Pulled(w=models, centre=w[:, None], strength=strength, opt=task.optimizer.init(models))

    def step(self, task: Task, state: Pulled, batch: Batch) -> Pulled:
        # Algorithm 1: w_i ← w_i − η ∇F_i(w_i) and v_i ← v_i − η (∇F_i(v_i) + λ (v_i − w^t)), the pull taken exactly
        return pulled_step(task, state, batch)

    def end(self, task: Task, state: Pulled, down: GlobalDown, private: DittoPrivate) -> tuple[ModelUp, DittoPrivate]:
        if self.personal_epochs == "shared":
            w, v = state.w.unbind(1)
            return ModelUp(w=w), DittoPrivate(v=v)
        own = at_centre(task, spread(down.w, task.k), self.lam).replace(w=private.v)
        # the draws of "train" again: with a round's epochs this is the shared loop, one model after the other
        return ModelUp(w=state.w), DittoPrivate(v=task.run(pulled_step, own, "train", self.personal_epochs).w)

    def personal(self, task: Task, down: GlobalDown, private: DittoPrivate) -> Predictor:
        return Predictor(models=private.v)

    def adapt(self, task: Task, down: GlobalDown, private: DittoPrivate | None) -> tuple[None, DittoPrivate]:
        """A newcomer starts v_i from the global model and trains it for one round, pulled towards that model."""
        epochs = None if self.personal_epochs == "shared" else self.personal_epochs
        start = at_centre(task, spread(down.w, task.k), self.lam)
        return None, DittoPrivate(v=task.run(pulled_step, start, "arrive", epochs).w)

    def cloud(self, task: Task, down: GlobalDown, private: DittoPrivate) -> Predictor:
        return global_predictor(task, down)

    def trace(self, server: Global, everyone: Cohort, private: DittoPrivate | None) -> dict[str, Tensor]:
        """How far each silo's model is from the global one: ‖v_i − w‖."""
        return {} if private is None else {"distance": all_silos((private.v - server.w).norm(dim=1))}
