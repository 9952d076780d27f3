"""A package as anyone might write it: one method, one model, one data set, one measure."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import nn

from coterie.data.catalog import Entry
from coterie.data.silo import Pool
from coterie.engine.method import Nothing, Task, spread
from coterie.engine.task import Weights
from coterie.measure.measures import Measure
from coterie.methods.fedavg import FedAvg
from coterie.methods.parts.averaging import GlobalDown
from coterie.models import Architecture
from coterie.options import option


@dataclass(frozen=True)
class Shrunk(FedAvg):
    """FedAvg whose silos start from a shrunk global model."""

    paper: ClassVar[str] = "Nobody, 2026"
    summary: ClassVar[str] = "FedAvg that starts from a shrunk global model"
    factor: float = option(0.9, "what the global model is multiplied by", above=0, high=1)

    def begin(self, task: Task, down: GlobalDown, private: Nothing) -> Weights:
        w = spread(down.w, task.k) * self.factor
        return Weights(w=w, opt=task.optimizer.init(w))


@dataclass(frozen=True)
class Tanh:
    """One hidden layer with tanh."""

    hidden: int = option(6, "its units", low=1)


def tanh(options: Tanh, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Flatten, then two layers."""
    inputs = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, options.hidden), nn.Tanh(), nn.Linear(options.hidden, outputs))


@dataclass(frozen=True)
class Clouds:
    """Points about three centres."""

    spread: float = option(1.0, "standard deviation of a cloud", above=0)


def clouds(options: Clouds) -> Pool:
    """240 points in four dimensions."""
    rng, y = np.random.default_rng(0), np.arange(240) % 3
    x = rng.normal(size=(3, 4))[y] + options.spread * rng.normal(size=(240, 4))
    return Pool("clouds", x.astype(np.float32), y, 3)


def kappa(y: np.ndarray, p: np.ndarray) -> float:
    """Cohen's: the accuracy beyond what guessing by the shares would give."""
    guess, classes = p.argmax(1), range(p.shape[1])
    chance = sum((y == c).mean() * (guess == c).mean() for c in classes)
    return float(((guess == y).mean() - chance) / (1 - chance)) if chance < 1 else float("nan")


KAPPA = Measure("kappa", "accuracy beyond chance", "classes", kappa)
TANH = Architecture(Tanh, tanh)
CLOUDS = Entry(
    "Three clouds of points", 3, (4,), 240, "public domain", "generated",
    Clouds, clouds, split_options={"silos": 4},
)  # fmt: skip
