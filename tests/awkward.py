"""Modules as people write them: what a batch, a gradient, a random number or a state may do that rows must survive."""

import itertools
import random
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

from coterie.models.lora import LoRA, adapted
from coterie.models.parts import Blueprint, Parts, freeze

CLASSES, INPUTS, HIDDEN, TOKENS = 3, 5, 6, 7


class Net(nn.Module):
    """Two layers with something awkward between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def middle(self, h: Tensor) -> Any:
        return h

    def forward(self, x: Tensor) -> Any:
        return self.out(self.middle(torch.tanh(self.first(x))))


class Words(nn.Module):
    """Classes of short texts."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(TOKENS, HIDDEN, **options), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.embed(x).tanh().mean(1))


class WordsAdded(Words):
    """The same, in words that can be rewritten for rows."""

    def forward(self, x: Tensor) -> Any:
        h = self.embed(x)
        return self.out(torch.tanh(h[:, 0] + h[:, 1] + h[:, 2]))


# Samples and rows


class StackedFirst(Net):
    def middle(self, h: Tensor) -> Any:
        return self.second(torch.stack([h, torch.sigmoid(h)], 0))[0]

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(HIDDEN, HIDDEN)


class TimeMajor(Net):
    """Steps of a sequence before its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Any:
        steps = torch.stack([torch.tanh(self.first(x[:, t : t + 1])) for t in range(INPUTS)], 0)
        return self.out(self.second(steps)[-1])


class FirstSample(Net):
    def middle(self, h: Tensor) -> Any:
        return h + h[:1]


class SizeAsNumber(Net):
    def middle(self, h: Tensor) -> Any:
        return h * (h.size(0) * 0.1)


class BatchMean(Net):
    def middle(self, h: Tensor) -> Any:
        return h - h.mean(0)


class Median(Net):
    """Samples meet in one number, which is one sample's."""

    def middle(self, h: Tensor) -> Any:
        return torch.cos(h - h.flatten().median())


class InputMax(Net):
    """The same before any weight."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x / x.abs().max())


class TopSample(Net):
    def middle(self, h: Tensor) -> Any:
        return torch.sin(h) + h[h.sum(1).argmax()]


class FromZeroVariance(Net):
    """Beside a coupling that is not to be seen where a variance is taken for a negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("var", torch.zeros(HIDDEN))

    def middle(self, h: Tensor) -> Any:
        if self.training:
            with torch.no_grad():
                self.var.lerp_(h.var(0), 0.1)
        h = h / (self.var.sqrt() + 0.1)
        return torch.cos(h - h.mean(0))


class BatchSoftmax(Net):
    def middle(self, h: Tensor) -> Any:
        return h * F.softmax(h.sum(1), 0)[:, None]


class Rolled(Net):
    def middle(self, h: Tensor) -> Any:
        return h + h.roll(1, 0)


class SoFar(Net):
    def middle(self, h: Tensor) -> Any:
        return h.cumsum(0)


class FunctionalBatchNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(HIDDEN))
        self.register_buffer("var", torch.ones(HIDDEN))

    def middle(self, h: Tensor) -> Any:
        return F.batch_norm(h, self.mean, self.var, training=self.training)


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def untracked() -> nn.Module:
    norm = nn.BatchNorm1d(HIDDEN, track_running_stats=False)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), norm, nn.Linear(HIDDEN, CLASSES))


def instance_norm() -> nn.Module:
    norm = nn.InstanceNorm2d(2, track_running_stats=True, affine=True)
    return nn.Sequential(norm, nn.Flatten(), nn.Linear(32, CLASSES))


class FixedNorm(nn.Module):
    """BatchNorm that is kept in evaluation mode, as people do who fine-tune."""

    def __init__(self) -> None:
        super().__init__()
        self.net = batch_norm()

    def train(self, mode: bool = True) -> "FixedNorm":
        super().train(mode)
        self.net[1].eval()  # type: ignore[index]
        return self

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class LargeBatch(Net):
    """What it does to a large batch is not to be seen in a small one."""

    def middle(self, h: Tensor) -> Any:
        return 2 * h if len(h) > 6 else h


class GradientMean(Net):
    """Samples meet on the way back alone."""

    def middle(self, h: Tensor) -> Any:
        mean = h.mean(0)
        return h + (mean - mean.detach())


class HookMean(Net):
    def middle(self, h: Tensor) -> Any:
        if h.requires_grad:
            h.register_hook(lambda g: g - g.mean(0))
        return h


class NormTwice(Net):
    """One layer, called twice, whose statistics move twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(HIDDEN)

    def middle(self, h: Tensor) -> Any:
        return self.norm(torch.tanh(self.norm(h)))


class ByLength(Net):
    """Nought by nought, where samples of zeros fill a batch."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x / x.norm(dim=1, keepdim=True))


# Gradients


class Straight(torch.autograd.Function):
    """Round, and let gradients through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.tanh(4 * x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + 0

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return -g


class Clamped(torch.autograd.Function):
    """Gradients beyond a bound are cut off; within it nothing is to be seen of this."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + 0

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.clamp(-1e3, 1e3)


class StraightThrough(Net):
    def middle(self, h: Tensor) -> Any:
        return Straight.apply(h)


class GradientReversal(Net):
    def middle(self, h: Tensor) -> Any:
        return Reversed.apply(h)


class GradientClamp(Net):
    def middle(self, h: Tensor) -> Any:
        return Clamped.apply(h)


class BackwardHook(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_full_backward_hook(lambda module, before, after: tuple(g and 0.5 * g for g in before))
        self.out.register_full_backward_hook(lambda module, before, after: tuple(0.5 * g for g in before))


class BackwardNorm(Net):
    """A hook that looks at a whole batch's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.out.register_full_backward_hook(lambda module, before, after: tuple(g / g.norm() for g in before))


class TensorHook(Net):
    def middle(self, h: Tensor) -> Any:
        if h.requires_grad:
            h.register_hook(lambda g: g / g.norm())
        return h


class ForwardHook(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda module, given, out: 2 * out)


class HookedFeatures(Net):
    """A hook that keeps what it sees in the module that made it."""

    def __init__(self) -> None:
        super().__init__()

        def keep(module: nn.Module, given: Any, out: Tensor) -> None:
            self.seen = out

        self.first.register_forward_hook(keep)

    def forward(self, x: Tensor) -> Any:
        self.first(x)
        return self.out(torch.tanh(self.seen))


class FunctionNorm(Net):
    """A function over a layer that has no weights, and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = norm = nn.BatchNorm1d(HIDDEN, affine=False)
        self.normed = lambda h: norm(h)

    def middle(self, h: Tensor) -> Any:
        return self.normed(h)


class RootHook(Net):
    """A hook of the module that is handed over itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, given, out: 2 * out)


class ParameterHook(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.weight.register_hook(lambda g: 0.1 * g)


class PartlyDetached(Net):
    def middle(self, h: Tensor) -> Any:
        return h.detach() + 0.1 * (h - h.detach())


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


class FrozenMiddle(Net):
    """Gradients pass through what is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(HIDDEN, HIDDEN).requires_grad_(False)

    def middle(self, h: Tensor) -> Any:
        return torch.tanh(self.second(h))


class FrozenBias(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.bias.requires_grad_(False)


class FrozenVmap(Frozen):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).cos()


class FrozenLoop(Frozen):
    def middle(self, h: Tensor) -> Any:
        return h * 2 if h.sum().item() > 0 else h * 3


class FrozenNoGrad(Frozen):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            h = torch.tanh(self.first(x))
        return self.out(h)


class FrozenShift(Net):
    """A frozen parameter that is no layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(-1, 1, HIDDEN), requires_grad=False)

    def middle(self, h: Tensor) -> Any:
        return h + self.shift


class FrozenFirst(Frozen):
    """What is frozen comes first, and what is added to it goes by the head's weights."""

    def middle(self, h: Tensor) -> Any:
        return torch.cos(h) + 0.1 * sum(p.square().sum() for p in self.parameters())


class FrozenTied(Words):
    """Tokens are read and written by one matrix, which stays."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.back = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, TOKENS, bias=False)
        self.back.weight = self.embed.weight
        self.out = nn.Linear(TOKENS, CLASSES)
        self.embed.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        h = self.embed(x)
        return self.out(self.back(torch.tanh(self.second(h[:, 0] + h[:, 1]))))


class FrozenPadding(Words):
    """What is not trained by mistake keeps nobody from vmap."""

    def __init__(self) -> None:
        super().__init__(padding_idx=0)
        self.embed.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).cos()


class FrozenAttention(Words):
    """A whole layer of PyTorch's that samples pass through alone, and what comes before it."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(HIDDEN, 2, 8, dropout=dropout, batch_first=True)
        self.embed.requires_grad_(False)
        self.layer.requires_grad_(False)
        self.layer.self_attn.dropout = 0.0  # which could not be keyed

    def forward(self, x: Tensor) -> Any:
        return self.out(self.layer(self.embed(x)).mean(1))


def frozen_norm() -> nn.Module:
    """Scale and shift stay, the statistics move, as PyTorch has it."""
    module = batch_norm()
    module[1].requires_grad_(False)  # type: ignore[index]
    return module


def frozen_untracked() -> nn.Module:
    module = untracked()
    module[1] = nn.BatchNorm1d(HIDDEN, track_running_stats=False).requires_grad_(False)  # type: ignore[operator]
    return module


def frozen_pictures() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 2, groups=2), nn.Flatten()]
    return freeze(
        nn.Sequential(*layers, nn.Dropout(0.4), nn.Linear(4, HIDDEN), nn.Linear(HIDDEN, CLASSES)), ["?"], ["6", "7"]
    )


def low_rank() -> nn.Module:
    net = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, CLASSES))
    return started(Blueprint(net, Parts(train=("head",), lora=LoRA(rank=2, alpha=2, targets=("0", "2"))))())


def low_rank_pictures() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 2, stride=2, bias=False), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, HIDDEN), nn.Linear(HIDDEN, CLASSES))
    return started(Blueprint(net, Parts(train=("head",), lora=LoRA(rank=2, alpha=2)))())


def started(module: nn.Module) -> nn.Module:
    """With adapters that already do something, so that all of them get a gradient."""
    for _, layer in adapted(module):
        nn.init.normal_(layer.lora_B.weight, std=0.1)
    return module


def frozen_but_norm() -> nn.Module:
    return freeze(batch_norm(), ["*"], ["norm", "head"])


def frozen_but_head() -> nn.Module:
    return freeze(batch_norm(), ["body"], [])


class Slope(Net):
    """Differentiates a layer of its own in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(HIDDEN, HIDDEN)

    def middle(self, h: Tensor) -> Any:
        with torch.enable_grad():
            at = h if h.requires_grad else h.detach().requires_grad_()
            (slope,) = torch.autograd.grad(torch.tanh(self.second(at)).sum(), at, create_graph=True)
        return h + slope


class UnderNoGrad(Net):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            h = torch.tanh(self.first(x))
        return self.out(h)


class Detached(Net):
    def middle(self, h: Tensor) -> Any:
        return h.detach()


class Unused(Net):
    def __init__(self) -> None:
        super().__init__()
        self.spare, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(3))


class UnusedBeside(Unused):
    """The same, under vmap."""

    def middle(self, h: Tensor) -> Any:
        return F.softplus(h)


class UnusedByLoop(Unused):
    """The same, one row at a time."""

    def middle(self, h: Tensor) -> Any:
        return h if float(h.detach().sum()) > -1e9 else -h


class Experts(Net):
    """Which of them a batch takes depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN) for _ in range(8)])

    def middle(self, h: Tensor) -> Any:
        return self.experts[int(h.detach().abs().sum() * 1e6) % 8](h)


class Sometimes(Net):
    """Whether a layer takes part goes by a batch's largest number."""

    bound = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(INPUTS, HIDDEN)

    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        return self.out(h + self.second(x) if float(x[:, 0].max()) > self.bound else h)


class Seldom(Sometimes):
    bound = 9.0


class Mostly(Sometimes):
    bound = -9.0


class OtherPart(Unused):
    """What trains takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)
        self.out.requires_grad_(False)


class Thawed(Frozen):
    def middle(self, h: Tensor) -> Any:
        self.first.requires_grad_(True)
        return h


class Recomputed(Net):
    """Checkpoints what cannot be rewritten."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Mish(), nn.Linear(HIDDEN, HIDDEN))

    def middle(self, h: Tensor) -> Any:
        return checkpoint(self.second, h, use_reentrant=False)


class Checkpointed(Net):
    def middle(self, h: Tensor) -> Any:
        return checkpoint(self.second, h, use_reentrant=False)

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(HIDDEN, HIDDEN)


# Values that change


class InPlaceInput(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x.mul_(0.5))


class ReluInput(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(F.relu_(x))


def relu_first() -> nn.Module:
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(INPUTS, CLASSES))


class Written(Net):
    def middle(self, h: Tensor) -> Any:
        h = h.clone()
        h[:, 0] = 0
        return h


class IntoZeros(Net):
    """A batch of zeros of the default type, filled."""

    def middle(self, h: Tensor) -> Any:
        out = torch.zeros(len(h), HIDDEN)
        out = out.to(h)
        out[:, 1:] = h[:, :-1]
        return out


class WeightClamp(Net):
    def forward(self, x: Tensor) -> Any:
        self.out.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


class MaxNorm(Net):
    """Weights of a bounded length, as EEGNet has them; the bound is not reached yet."""

    def forward(self, x: Tensor) -> Any:
        self.out.weight.data = torch.renorm(self.out.weight.data, 2, 0, 5.0)
        return super().forward(x)


class LateBuffer(Net):
    """Counts, and does something else only after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.losses: list[float] = []
        self.draw = random.Random(0)

    def middle(self, h: Tensor) -> Any:
        self.steps += self.training
        return torch.where(self.steps > 100, 2 * h, h)


class LateList(LateBuffer):
    def middle(self, h: Tensor) -> Any:
        self.losses.append(float(h.detach().sum()))
        return 2 * h if len(self.losses) > 100 else h


class LateObject(Net):
    """A meter that counts, as training loops have them; the others count in what else Python has for it."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = SimpleNamespace(seen=0)

    def middle(self, h: Tensor) -> Any:
        self.meter.seen += self.training
        return 2 * h if self.meter.seen > 100 else h


class LateDeque(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen = deque[int](maxlen=500)

    def middle(self, h: Tensor) -> Any:
        self.seen.append(len(h))
        return 2 * h if len(self.seen) > 100 else h


class LateIterator(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen = itertools.count()

    def middle(self, h: Tensor) -> Any:
        return 2 * h if next(self.seen) > 100 else h


class LatePrivate(Net):
    _seen = 0

    def middle(self, h: Tensor) -> Any:
        self._seen += self.training
        return 2 * h if self._seen > 100 else h


class LateHook(Net):
    def __init__(self) -> None:
        super().__init__()
        seen = 0

        def hook(module: nn.Module, given: Any, out: Tensor) -> Tensor:
            nonlocal seen
            seen += 1
            return 2 * out if seen > 100 else out

        self.first.register_forward_hook(hook)


class LateNorm(Net):
    """Goes by how many batches a layer of PyTorch's has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(HIDDEN)

    def middle(self, h: Tensor) -> Any:
        seen: Any = self.norm.num_batches_tracked
        return torch.where(seen > 100, 2.0, 1.0) * self.norm(h)


class LateRenorm(Net):
    """A norm of its own, which counts under the same name."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def middle(self, h: Tensor) -> Any:
        self.num_batches_tracked += self.training
        return h * (self.num_batches_tracked / 100).clamp(1, 3)


class Meter(Net):
    """Objects and functions that stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.options, self._seen = SimpleNamespace(scale=2.0, sizes=[1, 2], f=lambda h: h * scale), deque([1])
        scale = 3.0

    def middle(self, h: Tensor) -> Any:
        return self.options.f(h) * self.options.scale


class LateDraw(LateBuffer):
    """Its own stochastic depth."""

    def middle(self, h: Tensor) -> Any:
        return 0 * h if self.training and self.draw.random() < 1e-6 else h


class LateRate(Net):
    rate = 1.0

    def middle(self, h: Tensor) -> Any:
        self.rate *= 0.9
        return 2 * h if self.rate < 1e-6 else h


class StaleWeight(Net):
    """What it computed from its weights in training, it computes with in evaluation."""

    product: Any = None

    def middle(self, h: Tensor) -> Any:
        if self.training or self.product is None:
            self.product = (self.first.weight @ self.first.weight.t()).detach()
        return h @ self.product


class LastNumber(Net):
    """Keeps a number for whoever looks, and what is the same for all batches of a size."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Tensor] = {}

    def middle(self, h: Tensor) -> Any:
        self.size = float(h.detach().abs().mean())
        scale = self.made.setdefault(len(h), torch.linspace(1, 2, HIDDEN, dtype=h.dtype))
        return h * scale


class MovesAlways(Net):
    """A running mean that forgets to ask whether it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(HIDDEN))

    def middle(self, h: Tensor) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


class CountingBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def middle(self, h: Tensor) -> Any:
        if self.training:
            self.steps += 1
        return h / (1 + self.steps)


class CountingAttribute(Net):
    steps = 0

    def middle(self, h: Tensor) -> Any:
        self.steps += self.training
        return h / (1 + self.steps)


class CountingFloat(Net):
    """A count that is a column of its row like any other statistic."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def middle(self, h: Tensor) -> Any:
        if self.training:
            self.steps += 1
        return h / (1 + 0.1 * self.steps)


class AssignedBuffer(Net):
    """A running mean that is assigned, not changed in place; samples meet in it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(HIDDEN))

    def middle(self, h: Tensor) -> Any:
        y = h - self.mean
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return y


class AttributeMean(Net):
    """The same where no row can keep it."""

    mean: Any = 0.0

    def middle(self, h: Tensor) -> Any:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h if self.training else h - self.mean


class Carried(Net):
    """A state that goes from batch to batch."""

    state: Any = None

    def middle(self, h: Tensor) -> Any:
        before = 0 if self.state is None else self.state
        self.state = h.detach().mean(0)
        return h + before


class FirstBatch(Net):
    """Scales by its first batch, for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("done", torch.zeros(()))
        self.register_buffer("scale", torch.ones(HIDDEN))

    def middle(self, h: Tensor) -> Any:
        if self.training and not self.done:
            self.scale.copy_(h.detach().abs().mean(0))
            self.done.fill_(1)
        return h / self.scale


class Bank(Net):
    """Keeps the first sample of each of its last batches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.zeros(8, HIDDEN))
        self.register_buffer("at", torch.zeros(()))

    def middle(self, h: Tensor) -> Any:
        y = h + self.bank.mean(0)
        if self.training:
            self.bank[int(self.at) % 8] = h[0].detach()
            self.at += 1
        return y


class Codes(Net):
    """A vector for each sample of a few that follow their samples (VQ-VAE)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.linspace(-1, 1, 4 * HIDDEN).view(4, HIDDEN))

    def middle(self, h: Tensor) -> Any:
        which = torch.cdist(h, self.codes).argmin(1)
        code = self.codes[which]
        if self.training:
            one = F.one_hot(which, 4).to(h.dtype)
            count = one.sum(0)[:, None]
            mean = one.t() @ h.detach() / count.clamp(min=1)
            self.codes = torch.where(count > 0, 0.9 * self.codes + 0.1 * mean, self.codes)
        return h + (code - h).detach()


class Teacher(Net):
    """A mean of its weights over the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", self.first.weight.detach().clone())

    def forward(self, x: Tensor) -> Any:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(self.first.weight, alpha=0.1)
        return self.out(torch.tanh(self.first(x)) + torch.tanh(F.linear(x, self.mean)))


class Once(Net):
    """What it computes from its weights in its first call, it computes with for ever."""

    @cached_property
    def product(self) -> Tensor:
        return (self.first.weight @ self.first.weight.t()).detach()

    def middle(self, h: Tensor) -> Any:
        return h @ self.product


class Merging(Net):
    """An adapter that is added to its layer's weight in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.merged = nn.Parameter(0.1 * torch.randn(CLASSES, HIDDEN)), False

    def train(self, mode: bool = True) -> Any:
        if mode == self.merged:
            self.out.weight.data += -self.low if mode else self.low
            self.merged = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        return self.out(h) if self.merged else self.out(h) + h @ self.low.t()


class Shown(Net):
    """Keeps what it saw for whoever looks."""

    def middle(self, h: Tensor) -> Any:
        self.features = h
        return h


class Remembers(Net):
    """Keeps its last batch, and looks at it where it is of the same size."""

    last: Any = None

    def middle(self, h: Tensor) -> Any:
        if self.last is not None and self.last.shape == h.shape:
            self.drift = (h - self.last).abs().mean()
        self.last = h.detach()
        return h


class WarmUp(Net):
    """Does something else after some calls."""

    calls = 0

    def middle(self, h: Tensor) -> Any:
        self.calls += self.training
        return 2 * h if self.calls > 100 else h


class ConstantBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.linspace(0.5, 2, HIDDEN), persistent=False)

    def middle(self, h: Tensor) -> Any:
        return h * self.factor


class UnusedBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("nothing", torch.linspace(0.5, 2, HIDDEN))


class ComplexBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(HIDDEN), torch.linspace(0, 3, HIDDEN)))

    def middle(self, h: Tensor) -> Any:
        return (h * self.turn).real + (h * self.turn).imag


class ComplexParameter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.polar(torch.ones(HIDDEN), torch.linspace(0, 3, HIDDEN)))

    def middle(self, h: Tensor) -> Any:
        return (h * self.turn).real


class AttributeTensor(Net):
    """A constant of the default type that no `.to` reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = torch.eye(HIDDEN).flip(0)

    def middle(self, h: Tensor) -> Any:
        return h @ self.turn.to(h)


# Random numbers


class Drawn(Net):
    """Random features that are registered nowhere, so another module of the class has others."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = torch.randn(HIDDEN, HIDDEN)

    def middle(self, h: Tensor) -> Any:
        return h @ self.turn.to(h)


class DrawnBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", torch.randn(HIDDEN, HIDDEN), persistent=False)

    def middle(self, h: Tensor) -> Any:
        return h @ self.turn


class DrawnLayer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.second = [nn.Linear(HIDDEN, HIDDEN, dtype=torch.float64)]

    def middle(self, h: Tensor) -> Any:
        return self.second[0](h)


class OwnState(Net):
    """Leaves a part of itself out of what is saved."""

    def state_dict(self, *given: Any, **named: Any) -> Any:
        return {name: t for name, t in super().state_dict(*given, **named).items() if not name.startswith("first")}


class NumpyNoise(Net):
    def middle(self, h: Tensor) -> Any:
        return h * np.random.normal() if self.training else h


class OwnGenerator(Net):
    def middle(self, h: Tensor) -> Any:
        return h * np.random.default_rng().normal()


class StochasticDepth(Net):
    """Seldom does anything."""

    def middle(self, h: Tensor) -> Any:
        return 0 * h if self.training and random.random() < 1e-6 else h


class TorchNoise(Net):
    def middle(self, h: Tensor) -> Any:
        return h + torch.randn_like(h) if self.training else h


class NoiseAlways(Net):
    """`training` was forgotten: it drops in evaluation, too."""

    def middle(self, h: Tensor) -> Any:
        return F.dropout(h, 0.3)


class FunctionalDropout(Net):
    def middle(self, h: Tensor) -> Any:
        return F.dropout(h, 0.3, self.training)


class DropoutInPlace(Net):
    def middle(self, h: Tensor) -> Any:
        h = h + 0
        F.dropout(h, 0.3, self.training, inplace=True)
        return h


class DropoutTimeMajor(Net):
    """The mask goes over steps first, so a partial batch does not have the beginning of a full one's."""

    def middle(self, h: Tensor) -> Any:
        return F.dropout(torch.stack([h, 2 * h]), 0.3, self.training).sum(0)


def dropout() -> nn.Module:
    drop = nn.Dropout(0.4, inplace=True)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Hardswish(), drop, nn.Linear(HIDDEN, CLASSES))


def everything_dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Dropout(1.0), nn.Linear(HIDDEN, CLASSES))


def channel_dropout() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout2d(0.4), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, CLASSES))


# Control flow


class DataIf(Net):
    def middle(self, h: Tensor) -> Any:
        return 2 * h if h.detach().sum() > 0 else -h


class Item(Net):
    def middle(self, h: Tensor) -> Any:
        return h * h.detach().abs().max().item()


class BooleanMask(Net):
    def middle(self, h: Tensor) -> Any:
        return h + h[h > 0].mean()


class SampleExperts(Net):
    """Each sample goes through one of three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN) for _ in range(3)])
        self.gate = nn.Linear(HIDDEN, 3)

    def middle(self, h: Tensor) -> Any:
        share, out = self.gate(h).softmax(1), torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            mine = share.argmax(1) == i
            out[mine] = expert(h[mine]) * share[mine, i : i + 1]
        return out + sum(0 * p.sum() for p in self.experts.parameters())


class NormOfThree(Net):
    """Batches of one or two samples are not normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(HIDDEN)

    def middle(self, h: Tensor) -> Any:
        return self.norm(h) if len(h) > 2 else h


class TrainingIf(Net):
    def middle(self, h: Tensor) -> Any:
        return torch.relu(h) if self.training else torch.sigmoid(h)


class ThroughNumpy(Net):
    def middle(self, h: Tensor) -> Any:
        return h * torch.from_numpy(np.sign(h.detach().numpy()))


# Weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(INPUTS, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Any:
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


class TiedBack(Net):
    """One matrix, there and back."""

    def middle(self, h: Tensor) -> Any:
        return torch.tanh(F.linear(F.linear(h, self.first.weight.t()), self.first.weight))


def tied_norm() -> nn.Module:
    layer, norm = nn.Linear(INPUTS, INPUTS), nn.BatchNorm1d(INPUTS)
    return nn.Sequential(layer, norm, nn.Tanh(), layer, norm, nn.Linear(INPUTS, CLASSES))


class Interleaved(Net):
    """Parameters of one memory that have no number in common."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(t) for t in torch.randn(HIDDEN, 2 * HIDDEN).chunk(2, 1))

    def middle(self, h: Tensor) -> Any:
        return torch.cos(h @ self.left) + h @ self.right


class Scalars(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Any:
        return super().forward(x * self.scale + self.shift)


class Positive(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return F.linear(x, self.weight.abs(), self.bias)


def own_linear() -> nn.Module:
    return nn.Sequential(Positive(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(INPUTS, HIDDEN)), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def spectral_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(INPUTS, HIDDEN)), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)
    )


def old_spectral_norm() -> nn.Module:
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):
        layer = nn.utils.spectral_norm(nn.Linear(INPUTS, HIDDEN))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def orthogonal() -> nn.Module:
    layer = parametrizations.orthogonal(nn.Linear(HIDDEN, HIDDEN))
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), layer, nn.Linear(HIDDEN, CLASSES))


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        layer = nn.utils.weight_norm(nn.Linear(INPUTS, HIDDEN))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def pruned() -> nn.Module:
    net = Net()
    prune.l1_unstructured(net.first, "weight", 0.3)  # type: ignore[no-untyped-call]
    return net


class NoAnswer(Net):
    """`train` that forgets to give the module back."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)


class Nothing(Net):
    """A parameter and a buffer of no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.zeros(0, 4))
        self.register_buffer("none", torch.zeros(0))


class OneMemory(Net):
    """Tied by memory, which a copy unties."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(INPUTS, HIDDEN)
        self.second.weight.data = self.first.weight.data


class OneMemoryLater(OneMemory):
    """The same of a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(INPUTS, HIDDEN - 2)
        self.second.weight.data = self.first.weight.data[2:]


class BufferOfWeight(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("same", self.first.weight.detach())


class AttributeOfWeight(Net):
    def __init__(self) -> None:
        super().__init__()
        self.same = self.first.weight.detach()

    def middle(self, h: Tensor) -> Any:
        return h @ self.same.to(h) @ self.same.to(h).t()


class OwnParameters(Net):
    """Names the parameters that an optimiser is to have."""

    def parameters(self, recurse: bool = True) -> Any:
        return self.out.parameters(recurse)


class SparseBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("graph", torch.eye(HIDDEN).to_sparse())


def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)))


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


class Alias(Net):
    """A function that keeps a weight, which no copy of the module has."""

    def __init__(self) -> None:
        super().__init__()
        weight = self.out.weight
        self.back = lambda h: h + h @ weight.t() @ weight

    def middle(self, h: Tensor) -> Any:
        return self.back(h)


class Wrapped(Net):
    """A layer whose forward was replaced by a function around it."""

    def __init__(self) -> None:
        super().__init__()
        forward = self.first.forward
        self.first.forward = lambda x: 2 * forward(x)  # type: ignore[method-assign]


class Parent(Net):
    """A reference that no copy of the module follows."""

    def __init__(self) -> None:
        super().__init__()
        self.me = weakref.ref(self)

    def middle(self, h: Tensor) -> Any:
        return h * self.me().out.weight.sum()  # type: ignore[union-attr]


class Hidden(Net):
    """A layer that is registered nowhere, so nothing trains it, here as in plain PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.second = [nn.Linear(HIDDEN, HIDDEN, dtype=torch.float64)]
        with torch.no_grad():
            for parameter in self.second[0].parameters():
                parameter.fill_(0.1)

    def middle(self, h: Tensor) -> Any:
        return torch.tanh(self.second[0](h))


class Listed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.full((HIDDEN,), 1.0 + i)) for i in range(2)])

    def middle(self, h: Tensor) -> Any:
        return h * self.scales[0] + torch.exp(-self.scales[1]) * h.abs()


# Sequences


class Cell(Net):
    """An LSTM cell that starts from zeros of the default type."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(1, HIDDEN)

    def forward(self, x: Tensor) -> Any:
        h, c = (torch.zeros(len(x), HIDDEN, dtype=x.dtype) for _ in range(2))
        for t in range(INPUTS):
            h, c = self.cell(x[:, t : t + 1], (h, c))
        return self.out(h)


class Float32Cell(Cell):
    """Knows one type alone."""

    def forward(self, x: Tensor) -> Any:
        h = c = torch.zeros(len(x), HIDDEN, dtype=torch.float32)
        for t in range(INPUTS):
            h, c = self.cell(x[:, t : t + 1].to(torch.float32), (h, c))
        return self.out(h)


class Recurrent(Net):
    """Time first, as nn.GRU likes it."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, HIDDEN)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.gru(x.t()[:, :, None])[0][-1])


class Attention(Net):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, HIDDEN, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(HIDDEN, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.layer(self.embed(x)).mean(1))


class ClassToken(Net):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, HIDDEN))
        self.layer = nn.TransformerEncoderLayer(HIDDEN, 2, 8, dropout=0.0, batch_first=True)

    def middle(self, h: Tensor) -> Any:
        return self.layer(torch.cat([self.token.expand(len(h), -1, -1), h[:, None]], 1))[:, 0]


class Packed(Net):
    """Sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(1, HIDDEN, batch_first=True)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Any:
        length = (1 + (x > 0).sum(1)).clamp(max=INPUTS)
        steps = nn.utils.rnn.pack_padded_sequence(x[:, :, None], length, batch_first=True, enforce_sorted=False)
        return self.out(self.first(steps)[1][-1])


class Trimmed(Words):
    """Cuts a batch to its longest text."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x[:, : max(int((x != 0).sum(1).max()), 1)])


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(16, CLASSES)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Any:
        return self.out(torch.relu(self.norm(self.conv(x.contiguous(memory_format=torch.channels_last)))).flatten(1))


class Bag(Words):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(TOKENS, HIDDEN, mode="mean", padding_idx=0)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Any:
        return self.out(self.embed(x))


class FunctionalPadding(Words):
    def forward(self, x: Tensor) -> Any:
        return self.out(F.embedding(x, self.embed.weight, padding_idx=0).tanh().mean(1))


class Bytes(Net):
    """Whole numbers in, made into float32 as for pictures."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x[:, :INPUTS].to(self.first.weight.dtype) / TOKENS)


def circular() -> nn.Module:
    conv = nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")
    return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))


def transposed() -> nn.Module:
    return nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(75, CLASSES))


# Outputs


class Pair(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Squeezed(Net):
    """Loses the samples' axis where there is one."""

    def middle(self, h: Tensor) -> Any:
        return h[..., None].squeeze()


class OneForAll(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).mean(0)


def words(**options: Any) -> Callable[[], nn.Module]:
    return lambda: Words(**options)


def words_added(**options: Any) -> Callable[[], nn.Module]:
    return lambda: WordsAdded(**options)


TRAINED: dict[str, Callable[[], nn.Module]] = {
    "plain": Net, "batch-norm": batch_norm, "untracked batch norm": untracked, "instance norm": instance_norm,
    "norm kept in evaluation": FixedNorm, "functional batch norm": FunctionalBatchNorm,
    "stacked before samples": StackedFirst, "time major": TimeMajor, "first sample": FirstSample,
    "batch size as a number": SizeAsNumber, "batch mean": BatchMean, "softmax over samples": BatchSoftmax,
    "median of a batch": Median, "largest input of a batch": InputMax,
    "top sample": TopSample, "variance from zero": FromZeroVariance,
    "rolled": Rolled, "sum so far": SoFar,
    "straight-through": StraightThrough, "gradient reversal": GradientReversal, "gradient clamp": GradientClamp,
    "backward hook": BackwardHook, "backward hook of a norm": BackwardNorm, "tensor hook": TensorHook,
    "forward hook": ForwardHook, "hook of the root": RootHook,
    "hook that keeps features": HookedFeatures, "norm in a function": FunctionNorm,
    "forward in a function": Wrapped,
    "partly detached": PartlyDetached,
    "unused, rewritten": Unused, "unused, vmap": UnusedBeside, "unused, loop": UnusedByLoop,
    "checkpointed": Checkpointed,
    "input in place": InPlaceInput, "relu of the input": ReluInput, "relu layer first": relu_first,
    "written into": Written, "into zeros": IntoZeros,
    "count in a float buffer": CountingFloat, "assigned buffer": AssignedBuffer, "shown activations": Shown,
    "last batch": Remembers, "last number": LastNumber,
    "constant buffer": ConstantBuffer, "unused buffer": UnusedBuffer, "complex buffer": ComplexBuffer,
    "attribute tensor": AttributeTensor,
    "functional dropout": FunctionalDropout, "dropout in place": DropoutInPlace, "dropout layer in place": dropout,
    "everything dropped": everything_dropped, "dropout time major": DropoutTimeMajor,
    "channel dropout": channel_dropout,
    "if on data": DataIf, "item": Item, "boolean mask": BooleanMask, "if training": TrainingIf,
    "through numpy": ThroughNumpy,
    "tied": Tied, "own linear": own_linear, "weight norm": weight_norm, "spectral norm": spectral_norm,
    "old weight norm": old_weight_norm, "pruned": pruned, "train without an answer": NoAnswer, "nothing": Nothing,
    "parameter list": Listed, "registered nowhere": Hidden,
    "lstm cell": Cell, "gru": Recurrent, "attention": Attention, "bag": Bag,
    "padding, rewritten": words_added(padding_idx=0), "padding": words(padding_idx=0),
    "functional padding": FunctionalPadding, "by frequency": words(scale_grad_by_freq=True),
    "by frequency, rewritten": words_added(scale_grad_by_freq=True), "whole numbers": Bytes,
    "circular": circular, "transposed": transposed,
    "frozen": Frozen, "frozen, vmap": FrozenVmap, "frozen, loop": FrozenLoop, "frozen under no_grad": FrozenNoGrad,
    "frozen middle": FrozenMiddle, "frozen bias": FrozenBias, "frozen shift": FrozenShift,
    "frozen padding": FrozenPadding, "frozen tied": FrozenTied, "frozen first": FrozenFirst,
    "frozen attention": FrozenAttention, "frozen attention, dropout": lambda: FrozenAttention(0.3),
    "frozen norm": frozen_norm, "frozen pictures": frozen_pictures, "frozen but norm": frozen_but_norm,
    "frozen but head": frozen_but_head, "frozen untracked norm": frozen_untracked,
    "samples meet on the way back": GradientMean, "hook of a mean": HookMean, "norm twice": NormTwice,
    "layers twice": tied_norm, "by length": ByLength, "a slope": Slope, "objects that stay": Meter,
    "scaled by the first batch": FirstBatch, "bank of samples": Bank, "codes": Codes, "teacher": Teacher,
    "an expert for each sample": SampleExperts, "tied back": TiedBack, "interleaved": Interleaved, "scalars": Scalars,
    "old spectral norm": old_spectral_norm, "orthogonal": orthogonal, "class token": ClassToken, "packed": Packed,
    "trimmed": Trimmed, "channels last": ChannelsLast,
    "low rank": low_rank, "low rank, pictures": low_rank_pictures,
}  # fmt: skip

PICTURES = (
    "instance norm",
    "channel dropout",
    "circular",
    "transposed",
    "frozen pictures",
    "low rank, pictures",
    "channels last",
)
TEXTS = (
    "attention", "bag", "padding, rewritten", "padding", "functional padding", "by frequency",
    "by frequency, rewritten", "whole numbers", "frozen tied", "frozen padding", "frozen attention",
    "frozen attention, dropout", "trimmed",
)  # fmt: skip

REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "all frozen": (lambda: Net().requires_grad_(False), "no parameters to train"),
    "under no_grad": (UnderNoGrad, r"'first.weight', 'first.bias'.* no gradient.*freeze"),
    "detached": (Detached, r"'first.weight', 'first.bias'.* no gradient"),
    "experts": (Experts, r"'experts.* gradient from some batches only"),
    "hook of a parameter": (ParameterHook, "'first.weight' has a gradient hook"),
    "clamped weights": (WeightClamp, "changes its parameter 'out.weight'"),
    "count in a whole buffer": (CountingBuffer, "something else when it is called again"),
    "count in an attribute": (CountingAttribute, "something else when it is called again"),
    "mean in an attribute": (AttributeMean, "something else when it is called again"),
    "carried state": (Carried, "something else when it is called again"),
    "numpy noise": (NumpyNoise, "random numbers that cannot be keyed"),
    "a generator of its own": (OwnGenerator, "something else when it is called again"),
    "stochastic depth": (StochasticDepth, "random numbers that cannot be keyed"),
    "torch noise": (TorchNoise, "random numbers that cannot be keyed"),
    "dropout in evaluation": (NoiseAlways, "drops at random in evaluation"),
    "complex parameter": (ComplexParameter, "'turn' is complex"),
    "lazy": (lazy, "'0.weight' has no size yet"),
    "script": (scripted, "TorchScript"),
    "weight of a function": (Alias, "by the attributes under which they are registered"),
    "parent": (Parent, "keeps a weight of shape"),
    "largest norm": (MaxNorm, "changes its parameter 'out.weight'"),
    "warm-up": (WarmUp, "'calls' changes from call to call"),
    "late count in a buffer": (LateBuffer, "'steps' changes from call to call"),
    "late count in a list": (LateList, "'losses' changes from call to call"),
    "drawn when made": (Drawn, "predicts otherwise once it is made anew"),
    "drawn buffer": (DrawnBuffer, "predicts otherwise once it is made anew"),
    "drawn layer": (DrawnLayer, "predicts otherwise once it is made anew"),
    "own state": (OwnState, "loaded from its own state_dict.*first.weight"),
    "late count in an object": (LateObject, "'meter' changes from call to call"),
    "late count in a deque": (LateDeque, "'seen' changes from call to call"),
    "late count of an iterator": (LateIterator, "'seen' changes from call to call"),
    "late count of its own": (LatePrivate, "'_seen' changes from call to call"),
    "late count in a hook": (LateHook, "'first._forward_hooks' changes from call to call"),
    "late count of a norm": (LateNorm, "num_batches_tracked of its BatchNorm"),
    "late count of its own norm": (LateRenorm, "'num_batches_tracked' changes from call to call"),
    "late draw": (LateDraw, "'draw' changes from call to call"),
    "late rate": (LateRate, "'rate' changes from call to call"),
    "stale weight": (StaleWeight, "something else when it is called again"),
    "computed once": (Once, "something else with a row's weights in place of its own"),
    "merged in evaluation": (Merging, "predicts otherwise once it is made anew"),
    "moves in evaluation": (MovesAlways, "changes a buffer in evaluation"),
    "one memory": (OneMemory, "'first.weight' and 'second.weight' share their memory"),
    "one memory later": (OneMemoryLater, "'first.weight' and 'second.weight' share their memory"),
    "buffer of a weight": (BufferOfWeight, "'same' and 'first.weight' share their memory"),
    "attribute of a weight": (AttributeOfWeight, "predicts otherwise once it is made anew"),
    "own parameters": (OwnParameters, r"leaves out 'first.weight', 'first.bias'; freeze"),
    "sparse buffer": (SparseBuffer, "'graph' is sparse"),
    "another part": (OtherPart, "'scale', 'spare.weight', 'spare.bias' of the model shall train, and no output"),
    "thawed": (Thawed, "changes requires_grad of its parameter 'first.weight'"),
    "recomputed": (Recomputed, "torch.utils.checkpoint.*switch that off"),
    "squeezed": (Squeezed, r"output of shape \(3,\) for 1 sample; .*squeeze\(1\)"),
    "several GPUs": (lambda: nn.DataParallel(Net()), r"give its \.module"),
    "a pair": (Pair, "gives a tuple"),
    "one for all": (OneForAll, r"output of shape \(3,\)"),
    "momentum None": (
        lambda: nn.Sequential(nn.Linear(INPUTS, CLASSES), nn.BatchNorm1d(CLASSES, momentum=None)), "momentum=None"
    ),
}  # fmt: skip
