"""Distillation: one network for each silo that has learned, on the silo's own training data, what a mixture predicts.

Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015. The mixture is tempered already, so its
probabilities are learned as they are.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.engine.measuring import measure
from coterie.engine.method import Batch, Predictor, Task
from coterie.engine.predictors import Distilled, Ensemble
from coterie.engine.task import Weights, stepped
from coterie.wire import rows

EPOCHS = 10  # over the silo's training data


class Learning(Weights):
    """A network, and what it learns."""

    taught: Tensor = rows("what the mixture gives for each training sample", "o", "n")


def distilled(task: Task, mixture: Ensemble) -> Distilled:
    """The networks, each from the single one that has most of its silo's mixture."""
    taught = task.outcomes(mixture, "train", raw=True)["outputs"]  # (k, n, C, ...) or (k, n, ...)
    taught = taught.reshape(*taught.shape[:2], -1).movedim(2, 1).to(task.model.dtype)  # (k, o, n)
    w = _starts(task, mixture)
    state = Learning(w=w, opt=task.optimizer.init(w), taught=taught)
    network = Predictor(models=task.run(_step, state, "distil", EPOCHS, every_sample=True).w)
    losses = [measure(task, each, "validation").get("loss") for each in (mixture, network)]
    known = [torch.full((task.k,), torch.nan).to(w) if each is None else each.to(w) for each in losses]
    return Distilled(network=network, shares=mixture.weights, losses=torch.stack(known, 1))


def _starts(task: Task, mixture: Ensemble) -> Tensor:
    single = {c: p.models for c, p in enumerate(mixture.parts) if isinstance(p, Predictor) and p.weights is None}
    if not single:
        return task.start()
    largest = mixture.weights[:, list(single)].argmax(1)
    return torch.stack([*single.values()], 1)[torch.arange(task.k, device=largest.device), largest]


def _step(task: Task, state: Learning, batch: Batch) -> Learning:
    target = batch.of(state.taught).movedim(1, 2)  # (k, b, o)

    def loss(out: Tensor, each: Batch, features: Tensor | None) -> Tensor:
        wanted = target.reshape(out.shape)
        off = -wanted * F.log_softmax(out, 2) if task.model.classes else (out - wanted).square()
        summed = off.sum(2) if task.model.classes else off
        return summed.reshape(*out.shape[:2], -1).mean(2)

    return stepped(task, state, task.grad(state.w, batch, loss=loss), batch)
