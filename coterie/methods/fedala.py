"""FedALA: adaptive local aggregation. A silo learns, weight by weight, how much to take of the global model.

Zhang, Hua, Wang, Song, Xue, Ma and Guan, "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI
2023 (equations by its numbers). Before it trains, a silo mixes the global model into its own: the lower layers are the
global model's, and in the top p layers A_i, from 0 to 1 for every parameter, says how much. A_i is learned on a random
share of the silo's training data, to convergence in its second round and by one pass in each later one; in its first it
takes the global model as it is, since it has none of its own (the published code looks whether two models are equal).

A layer is a module with parameters, counted from the last. A pass has converged when the deviation of the mean losses
of the last ten passes is below `threshold`; the published code takes the loss of each pass's last mini-batch and has no
cap on passes. All passes of a round go over the same mini-batches. BatchNorm's statistics are the global model's.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.engine.layout import Layout
from coterie.engine.method import Batch, Model, Private, Roster, State, Task, spread
from coterie.engine.task import Weights
from coterie.methods.parts.averaging import GlobalDown, GlobalModel, ModelUp
from coterie.options import option
from coterie.wire import rows

WINDOW = 10  # passes whose losses are compared


class Adaptive(Private):
    """A silo's own model, and how much of the global one it takes."""

    w: Tensor = rows("its model after local training", role="model")
    a: Tensor = rows("A_i, how much of each parameter of the top layers it takes of the global model", "top")
    rounds: Tensor = rows("rounds it has taken part in")


class LearningWeights(State):
    """A_i in a pass over a share of the data."""

    own: Tensor = rows("the top layers of the silo's own model", "top")
    sent: Tensor = rows("the global model", role="model")
    a: Tensor = rows("A_i", "top")
    left: Tensor = rows("samples of the share that are left in this pass")
    loss: Tensor = rows("the sum of the losses of those that were taken")


class Started(Weights):
    """Plain local training from the mixture."""

    a: Tensor = rows("A_i", "top")


@dataclass(frozen=True)
class FedALA(GlobalModel[Adaptive, Started]):
    """FedAvg whose silos start from their own mixture of the global model and their own."""

    by_columns = True
    paper = "Zhang et al., AAAI 2023"
    summary = "each silo learns how much to take of every top parameter of the global model, then trains"
    from_own = True  # all of it, where A is 0 on all layers

    layers: int = option(1, "p, the layers from the last whose A is learned; those below are the global model's", low=1)
    share: float = option(0.8, "s, the share of a silo's training data that A is learned on", above=0, high=1)
    eta: float = option(1.0, "η, the learning rate of A", low=0)
    threshold: float = option(0.01, "how far the loss may still vary when A has converged", above=0)
    passes: int = option(50, "passes over the data at most until A has converged", low=1)

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Adaptive:
        return self._new(model, model.starts(roster.seed, roster.take(rows).names, common=True), rounds=0)

    def begin(self, task: Task, down: GlobalDown, private: Adaptive) -> Started:
        sent = spread(down.w, task.k)
        own = private.w[:, top_columns(task.model.layout, self.layers)]
        a = self._learned(task, own, sent, private)
        w = self._mixed(task, own, sent, a)
        return Started(w=w, opt=task.optimizer.init(w), a=a)

    def end(self, task: Task, state: Started, down: GlobalDown, private: Adaptive) -> tuple[ModelUp, Adaptive]:
        return ModelUp(w=state.w), Adaptive(w=state.w, a=state.a, rounds=private.rounds + 1)

    def fewest(self, samples: int, steps: tuple[int, ...]) -> int:
        """Of the share by which A is learned, what full steps leave over is a step, too."""
        return min(*steps, math.ceil(self.share * samples) % steps[0] or steps[0])

    def adapt(self, task: Task, down: GlobalDown, private: Adaptive | None) -> tuple[None, Adaptive]:
        """A newcomer trains the global model for one round, as the others did in their first."""
        return None, self._new(task.model, task.fit(spread(down.w, task.k), "arrive"), rounds=1)

    def _new(self, model: Model, w: Tensor, rounds: int) -> Adaptive:
        a = torch.ones_like(w[:, top_columns(model.layout, self.layers)])  # all of the global model
        return Adaptive(w=w, a=a, rounds=w.new_full((len(w),), rounds))

    # How much of the global model

    def _mixed(self, task: Task, own: Tensor, sent: Tensor, a: Tensor) -> Tensor:
        """eq. 4: w_i + (w̄ − w_i) ⊙ A_i in the top layers, w̄ in all others."""
        top = top_columns(task.model.layout, self.layers)
        return torch.cat([sent[:, : top.start], torch.lerp(own, sent[:, top], a), sent[:, top.stop :]], 1)

    def _learned(self, task: Task, own: Tensor, sent: Tensor, private: Adaptive) -> Tensor:
        """A_i after this round's passes: none in a silo's first round, to convergence in its second, then one."""
        wanted = (self.share * task.counts().double()).ceil().to(sent.dtype)
        a, loss, losses = private.a, torch.zeros_like(wanted), list[Tensor]()
        going = private.rounds > 0
        for _ in range(self.passes):
            here = going.nonzero()[:, 0]
            if not len(here):
                break
            left = wanted[here]
            state = LearningWeights(own=own[here], sent=sent[here], a=a[here], left=left, loss=torch.zeros_like(left))
            # always the draws of "ala": a round's passes go over one random share of the data
            state = task.take(here).run(self._pass, state, "ala", epochs=1, every_sample=True)
            a, loss = a.index_copy(0, here, state.a), loss.index_copy(0, here, state.loss / left)
            losses.append(loss)
            going = going & (private.rounds < 2) & ~_converged(losses, self.threshold)
        return a

    def _pass(self, task: Task, state: LearningWeights, batch: Batch) -> LearningWeights:
        """One mini-batch, of which only what is left of the share counts."""
        taken = batch.mask * (batch.mask.cumsum(1) <= state.left[:, None])
        count = taken.sum(1)
        weight = taken * (batch.mask.sum(1) / count.clamp_min(1))[:, None]  # so that the mean is over those taken
        gradient = task.grad(self._mixed(task, state.own, state.sent, state.a), batch, weight)
        top = top_columns(task.model.layout, self.layers)
        slope = gradient.grads[:, top] * (state.sent[:, top] - state.own)
        a = (state.a - self.eta * slope).clamp(0, 1)  # eq. 5, and A clipped to [0, 1]
        return state.replace(a=a, left=state.left - count, loss=state.loss + count * gradient.losses)


def top_columns(layout: Layout, layers: int) -> slice:
    """The columns of the last so many modules that have parameters."""
    modules = list(dict.fromkeys(block.name.rpartition(".")[0] for block in layout.parameters))
    top = set(modules[-layers:])
    return slice(min(b.start for b in layout.parameters if b.name.rpartition(".")[0] in top), layout.trained)


def _converged(losses: list[Tensor], threshold: float) -> Tensor:
    """Whether each silo's loss (k,) stands still over the last passes."""
    deviation = torch.stack(losses[-WINDOW:]).std(0, correction=0)
    return (deviation < threshold) & (len(losses) > WINDOW)
