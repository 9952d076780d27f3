"""Optimisers over rows: one flat update for all models, nothing but the rows' own arithmetic."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coterie.errors import BadInput
from coterie.wire import Record, rows


@dataclass(frozen=True)
class Gradient:
    """Gradients of k rows; adding a tensor adds to the gradients (a proximal pull), scaling scales them."""

    grads: Tensor  # (k, d) or (k, c, d), zero in the columns of buffers
    losses: Tensor  # (k,) or (k, c): mean loss of the batch
    buffers: Tensor | None = None  # (k, d - trained) or (k, c, d - trained): the buffers after this batch

    def __add__(self, pull: Tensor) -> "Gradient":
        return Gradient(self.grads + pull, self.losses, self.buffers)

    def __mul__(self, factor: Tensor | float) -> "Gradient":
        return Gradient(self.grads * factor, self.losses, self.buffers)


class Optimizer(Protocol):
    """State in, state out; `lr` comes with the batch, so that a schedule is the engine's business."""

    def init(self, w: Tensor) -> Record:
        """The state before the first step."""

    def step(self, w: Tensor, gradient: Gradient, state: Record, lr: Tensor | float) -> tuple[Tensor, Record]:
        """Rows and state after one step."""


class NoState(Record):
    """Plain SGD remembers nothing."""


class Velocity(Record):
    """Heavy-ball momentum."""

    v: Tensor = rows("running sum of gradients", "d")


class Moments(Record):
    """Adam's memory."""

    m: Tensor = rows("running mean of gradients", "d")
    v: Tensor = rows("running mean of squared gradients", "d")
    t: Tensor = rows("steps taken")


def moved(w: Tensor, change: Tensor, gradient: Gradient) -> Tensor:
    """w - change, except in the columns of buffers, which take the values that the forward pass left."""
    new = w - change
    if gradient.buffers is not None:
        new = torch.cat([new[..., : -gradient.buffers.shape[-1]], gradient.buffers.reshape(*new.shape[:-1], -1)], -1)
    return new


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum and weight decay, as torch.optim.SGD does it."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, w: Tensor) -> Record:
        """No velocity yet."""
        return Velocity(v=torch.zeros_like(w)) if self.momentum else NoState()

    def step(self, w: Tensor, gradient: Gradient, state: Record, lr: Tensor | float) -> tuple[Tensor, Record]:
        """One step."""
        g = gradient.grads + self.weight_decay * w if self.weight_decay else gradient.grads
        if isinstance(state, Velocity):
            state = Velocity(v=self.momentum * state.v + g)
            g = state.v
        return moved(w, lr * g, gradient), state


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), as torch.optim.Adam does it."""

    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def init(self, w: Tensor) -> Record:
        """No moments yet."""
        steps = torch.zeros(len(w), dtype=w.dtype, device=w.device)
        return Moments(m=torch.zeros_like(w), v=torch.zeros_like(w), t=steps)

    def step(self, w: Tensor, gradient: Gradient, state: Record, lr: Tensor | float) -> tuple[Tensor, Record]:
        """One step."""
        assert isinstance(state, Moments)
        g = gradient.grads + self.weight_decay * w if self.weight_decay else gradient.grads
        m = torch.lerp(state.m, g, 1 - self.beta1)
        v = self.beta2 * state.v + (1 - self.beta2) * g * g
        t = state.t + 1
        by_row = (-1, *[1] * (w.ndim - 1))
        scale = (lr / (1 - self.beta1**t)).view(by_row)
        root = (1 - self.beta2**t).sqrt().view(by_row)
        return moved(w, scale * m / (v.sqrt() / root + self.epsilon), gradient), Moments(m=m, v=v, t=t)


def optimizer(name: str, momentum: float, weight_decay: float) -> Optimizer:
    """The optimiser a study names."""
    if name == "sgd":
        return SGD(momentum, weight_decay)
    if momentum:
        raise BadInput(f"[train] momentum: {name} has no momentum option; leave it out or take optimizer = 'sgd'")
    return Adam(weight_decay)
