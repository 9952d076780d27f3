"""Optimisers over rows: one flat update for all models, nothing but the rows' own arithmetic.

A pull, strength/2 ‖w − centre‖², is no part of the gradient that an optimiser sees. It takes its step on the loss alone
and then the exact proximal step in its own metric: w ← (w' + a·strength·centre) / (1 + a·strength), where a is what the
optimiser multiplies a lasting gradient with. To first order that is a step along the pull's gradient; unlike one it
never passes the centre, whatever the strength and the learning rate.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.engine.layout import Columns
from coterie.errors import BadInput
from coterie.wire import Record, rows


@dataclass(frozen=True)
class Gradient:
    """Gradients of k rows; adding a tensor adds to the gradients, scaling scales them."""

    grads: Tensor  # (k, d) or (k, c, d), zero in the columns of buffers
    losses: Tensor  # (k,) or (k, c): mean loss of the batch
    buffers: Tensor | None = None  # (k, d - trained) or (k, c, d - trained): the buffers after this batch
    strength: Tensor | None = None  # (k,) or (k, c): how strongly the rows are pulled
    centre: Tensor | None = None  # (k, d) or (k, c, d): where to
    still: Tensor | None = None  # (d,) which columns belong to parameters that take no part: those never move

    def __add__(self, other: Tensor) -> "Gradient":
        return replace(self, grads=self.grads + other)

    def __mul__(self, factor: Tensor | float) -> "Gradient":
        return replace(self, grads=self.grads * factor)

    def pulled(self, centre: Tensor, strength: Tensor) -> "Gradient":
        """With a pull of strength/2 ‖w − centre‖², which the optimiser takes exactly after its step on the loss."""
        return replace(self, centre=centre, strength=strength)

    def of(self, columns: Columns) -> "Gradient":
        """Of some columns alone."""
        buffers = None
        if self.buffers is not None and columns.trained < columns.width:
            before = self.grads.shape[-1] - self.buffers.shape[-1]
            whole = torch.cat([self.grads[..., :before], self.buffers.reshape(*self.grads.shape[:-1], -1)], -1)
            buffers = columns.take(whole)[..., columns.trained :]
        centre = None if self.centre is None else columns.take(self.centre)
        still = None if self.still is None else columns.take(self.still)
        return replace(self, grads=columns.take(self.grads), buffers=buffers, centre=centre, still=still)


class Optimizer(Protocol):
    """State in, state out; `lr` comes with the batch, so that a schedule is the engine's business.

    It is one number, or (k,) with one for each row. A step on some columns (`only`) has a state of those columns, and
    nothing else of the rows moves: no weight decay, no momentum, no pull, no statistics.
    """

    def init(self, w: Tensor, only: Columns | None = None) -> Record:
        """The state before the first step."""

    def step(
        self, w: Tensor, gradient: Gradient, state: Record, lr: Tensor | float, only: Columns | None = None
    ) -> tuple[Tensor, Record]:
        """Rows and state after one step."""


class NoState(Record):
    """Plain SGD remembers nothing."""


class Velocity(Record):
    """Heavy-ball momentum."""

    v: Tensor = rows("running sum of gradients", role="change")
    n: Tensor = rows("what that is of a lasting gradient")


class Moments(Record):
    """Adam's memory."""

    m: Tensor = rows("running mean of gradients", role="change")
    v: Tensor = rows("running mean of squared gradients", role="change")
    t: Tensor = rows("steps taken")


def moved(w: Tensor, change: Tensor, gradient: Gradient) -> Tensor:
    """w - change, except in the columns of buffers, which take the values that the forward pass left."""
    return _settled(w, w - change, gradient)


def _settled(w: Tensor, new: Tensor, gradient: Gradient) -> Tensor:
    """Rows after a step, except for the columns that no step moves."""
    if gradient.still is not None:
        new = torch.where(gradient.still, w, new)
    if gradient.buffers is None:
        return new
    return torch.cat([new[..., : -gradient.buffers.shape[-1]], gradient.buffers.reshape(*new.shape[:-1], -1)], -1)


def _less(w: Tensor, direction: Tensor, lr: Tensor | float) -> Tensor:
    """w - lr * direction in one pass over memory, which is what a step costs."""
    return w - lr * direction if isinstance(lr, Tensor) else torch.add(w, direction, alpha=-lr)


def _direction(w: Tensor, g: Tensor, weight_decay: float) -> Tensor:
    """The gradient with the weight decay in it."""
    return torch.add(g, w, alpha=weight_decay) if weight_decay else g


def _drawn(new: Tensor, strength: Tensor | None, centre: Tensor | None, rate: Tensor | float) -> Tensor:
    """(new + a·centre) / (1 + a) with a = rate·strength, as a share of the way: nothing overflows, and a = 0 is new."""
    if strength is None or centre is None:
        return new
    return torch.lerp(new, centre, 1 / (1 + 1 / (rate * strength[..., None])))


@cache
def _fused(update: Callable[..., Any], device: str) -> Callable[..., Any]:
    """An update as one pass over memory, where a compiler for the device is at hand and the rows are large."""
    return torch.compile(update, dynamic=True) if device == "cuda" else update


def _sgd(
    w: Tensor, g: Tensor, strength: Tensor | None, centre: Tensor | None, lr: Tensor | float, weight_decay: float
) -> Tensor:
    return _drawn(_less(w, _direction(w, g, weight_decay), lr), strength, centre, lr)


def _heavy_ball(
    w: Tensor, g: Tensor, v: Tensor, n: Tensor, strength: Tensor | None, centre: Tensor | None, lr: Tensor | float,
    momentum: float, weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    v = torch.add(_direction(w, g, weight_decay), v, alpha=momentum)
    # A lasting gradient adds up to n times itself: 1 in the first step of a round, in the end 1/(1 − momentum). The
    # pull must keep its weight beside it.
    n = 1 + momentum * n
    return _drawn(_less(w, v, lr), strength, centre, lr * n.view(-1, *[1] * (w.ndim - 1))), v, n


def _adam(
    w: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, strength: Tensor | None, centre: Tensor | None,
    lr: Tensor | float, beta1: float, beta2: float, epsilon: float, weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    g = _direction(w, g, weight_decay)
    m = torch.lerp(m, g, 1 - beta1)
    v = torch.addcmul(beta2 * v, g, g, value=1 - beta2)
    t = t + 1
    by_row = (-1, *[1] * (w.ndim - 1))
    scale = lr / (1 - beta1**t).view(by_row)
    root = (1 - beta2**t).sqrt().view(by_row)
    size = v.sqrt() / root + epsilon
    return _drawn(torch.addcdiv(w, scale * m, size, value=-1), strength, centre, lr / size), m, v, t


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum and weight decay, as torch.optim.SGD does it."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, w: Tensor, only: Columns | None = None) -> Record:
        """No velocity yet."""
        w = w if only is None else only.take(w)
        return Velocity(v=torch.zeros_like(w), n=w.new_zeros(len(w))) if self.momentum else NoState()

    def step(
        self, w: Tensor, gradient: Gradient, state: Record, lr: Tensor | float, only: Columns | None = None
    ) -> tuple[Tensor, Record]:
        """One step."""
        if only is not None:
            part, state = self.step(only.take(w), gradient.of(only), state, lr)
            return only.put(w, part), state
        last = (gradient.strength, gradient.centre, _rate(lr, w))
        if not isinstance(state, Velocity):
            new = _fused(_sgd, w.device.type)(w, gradient.grads, *last, self.weight_decay)
            return _settled(w, new, gradient), state
        update = _fused(_heavy_ball, w.device.type)
        new, v, n = update(w, gradient.grads, state.v, state.n, *last, self.momentum, self.weight_decay)
        return _settled(w, new, gradient), Velocity(v=v, n=n)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), as torch.optim.Adam does it."""

    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def init(self, w: Tensor, only: Columns | None = None) -> Record:
        """No moments yet."""
        w = w if only is None else only.take(w)
        steps = torch.zeros(len(w), dtype=w.dtype, device=w.device)
        return Moments(m=torch.zeros_like(w), v=torch.zeros_like(w), t=steps)

    def step(
        self, w: Tensor, gradient: Gradient, state: Record, lr: Tensor | float, only: Columns | None = None
    ) -> tuple[Tensor, Record]:
        """One step."""
        if only is not None:
            part, state = self.step(only.take(w), gradient.of(only), state, lr)
            return only.put(w, part), state
        assert isinstance(state, Moments)
        update = _fused(_adam, w.device.type)
        pull, betas = (gradient.strength, gradient.centre), (self.beta1, self.beta2, self.epsilon)
        new, m, v, t = update(
            w, gradient.grads, state.m, state.v, state.t, *pull, _rate(lr, w), *betas, self.weight_decay
        )
        return _settled(w, new, gradient), Moments(m=m, v=v, t=t)


def _rate(lr: Tensor | float, w: Tensor) -> Tensor | float:
    """A learning rate as it multiplies rows: (k,) as (k, 1) or (k, 1, 1).

    One number is a tensor where updates are compiled, so that another learning rate is not another program.
    """
    if isinstance(lr, Tensor):
        return lr.view(-1, *[1] * (w.ndim - 1)) if lr.ndim else lr
    return torch.full((), lr, dtype=w.dtype, device=w.device) if w.device.type == "cuda" else lr


def optimizer(name: str, momentum: float, weight_decay: float) -> Optimizer:
    """The optimiser a study names."""
    if name == "sgd":
        return SGD(momentum, weight_decay)
    if momentum:
        raise BadInput(f"[train] momentum: {name} has no momentum option; leave it out or take optimizer = 'sgd'")
    return Adam(weight_decay)
