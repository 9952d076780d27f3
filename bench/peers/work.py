"""The one piece of work that every library does: read from a file, so that data and first model are the same for all.

Needs numpy and torch alone: it is imported in every environment.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from networks import NETWORKS
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10
PULL = 0.1  # of Ditto and FedAMP: PULL / 2 |w - centre|^2
SIGMA = 10.0  # of FedAMP, eq. 5 to 7 of its paper: xi_ij = alpha exp(-|w_i - w_j|^2 / SIGMA) / SIGMA


@dataclass(frozen=True)
class Size:
    """How much of it."""

    clients: int
    samples: int  # of a client
    batch: int

    @property
    def steps(self) -> int:
        """Mini-batches of a client in a round of one epoch."""
        return self.samples // self.batch


LR = {"mlp": 0.05, "cnn": 0.02, "resnet18": 0.02}  # small enough that rounding is not blown up
SHAPES = {"mlp": (64,), "cnn": (1, 28, 28), "resnet18": (3, 32, 32)}
SIZES = {
    "cpu": {"mlp": Size(100, 320, 32), "cnn": Size(10, 64, 32), "resnet18": Size(4, 32, 16)},
    "cuda": {"mlp": Size(100, 320, 32), "cnn": Size(50, 500, 100), "resnet18": Size(20, 500, 100)},
}


def write(path: Path, name: str, size: Size, seed: int) -> None:
    """A first model and data: vectors that a linear rule labels, images that show their class, both with noise."""
    rng = np.random.default_rng(seed)
    shape, inputs = (size.clients, size.samples), prod(SHAPES[name])
    x = rng.standard_normal((*shape, inputs)).astype(np.float32)
    rule = rng.standard_normal((inputs, CLASSES))
    if name == "mlp":
        y = (x @ rule + 2 * rng.standard_normal((*shape, CLASSES))).argmax(-1)
    else:
        y = rng.integers(CLASSES, size=shape)
        x += rule.T[y].astype(np.float32) / 8
    torch.manual_seed(seed)
    weights = {f"weights/{key}": value.numpy() for key, value in NETWORKS[name]().state_dict().items()}
    np.savez(path, name=name, batch=size.batch, x=x.reshape(*shape, *SHAPES[name]), y=y, **weights)


class Work:
    """What is in the file."""

    def __init__(self, path: str, device: str) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.name, batch = str(file["name"]), int(file["batch"])
            self.x, self.y = (torch.from_numpy(file[key]).to(device) for key in ("x", "y"))
            held = {key: torch.from_numpy(file[key]) for key in file.files if key.startswith("weights/")}
        self.path, self.device = path, device
        self.weights = {key.removeprefix("weights/"): value for key, value in held.items()}
        self.size, self.lr = Size(*self.y.shape, batch), LR[self.name]
        self.alpha = SIGMA / (2 * self.size.clients)  # the other clients never weigh more than half

    def model(self) -> nn.Module:
        """The model with the weights that training starts from."""
        model = NETWORKS[self.name]()
        model.load_state_dict(self.weights)
        return model.to(self.device)

    def batches(self, client: int) -> Iterable[tuple[Tensor, Tensor]]:
        """A client's mini-batches of an epoch, in the file's order."""
        return zip(self.x[client].split(self.size.batch), self.y[client].split(self.size.batch), strict=True)

    @torch.no_grad()
    def loss(self, models: list[Mapping[str, Tensor]]) -> float:
        """Mean cross-entropy over the clients' own samples: of one model for all, or of each client's own."""
        model, losses = self.model(), []
        for client in range(self.size.clients):
            if len(models) > 1 or client == 0:
                model.load_state_dict(dict(models[client]))
            losses.append(F.cross_entropy(model(self.x[client]), self.y[client]).item())
        return sum(losses) / len(losses)


read = functools.cache(Work)  # a worker that serves many clients reads the file once


def epoch(given: Work, client: int, model: nn.Module, pull: Callable[[], Tensor] | None = None) -> None:
    """A client's training, for libraries that leave its loop to their users."""
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr)
    for x, y in given.batches(client):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        (loss if pull is None else loss + pull()).backward()
        optimizer.step()


def now(device: str) -> float:
    """The time, once the device has done what it was asked; with PEERS_CLOCK=cpu that of this process's processor."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if os.environ.get("PEERS_CLOCK") == "cpu" else time.perf_counter()


@dataclass(frozen=True)
class Asked:
    """What a runner is started with: `WORK METHOD ROUNDS DEVICE`."""

    path: str
    method: str
    rounds: int
    device: str

    @property
    def work(self) -> Work:
        """The work on its device."""
        return read(self.path, self.device)


def asked() -> Asked:
    """What this process is started with."""
    path, method, rounds, device = sys.argv[1:]
    return Asked(path, method, int(rounds), device)


def report(seconds: list[float], models: list[Mapping[str, Tensor]]) -> None:
    """Print how long each round took and what the models at the end are worth."""
    given = asked()
    if len(seconds) != given.rounds:
        raise RuntimeError(f"{len(seconds)} rounds were timed, {given.rounds} were asked for")
    print(json.dumps({"seconds": seconds, "loss": given.work.loss(models)}), flush=True)
