"""The one piece of work that every library does: read from a file, so that data and first model are the same for all.

Needs numpy and torch alone: it is imported in every environment.
"""

import functools
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

CLIENTS, SAMPLES, INPUTS, HIDDEN, CLASSES = 100, 320, 64, 128, 10
BATCH, LR = 32, 0.05
STEPS = SAMPLES // BATCH  # mini-batches of a client in a round of one epoch

# FedAMP by eq. 5 to 7 of its paper: xi_ij = ALPHA exp(-|w_i - w_j|^2 / SIGMA) / SIGMA, pulled by PULL / 2 |w - u|^2.
# With these the others never weigh more than half.
SIGMA, ALPHA, PULL = 10.0, 0.05, 0.1


def write(path: Path, seed: int) -> None:
    """Clients whose labels come from one linear rule with some noise, and a first model."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((CLIENTS, SAMPLES, INPUTS)).astype(np.float32)
    rule = rng.standard_normal((INPUTS, CLASSES))
    y = (x @ rule + 2 * rng.standard_normal((CLIENTS, SAMPLES, CLASSES))).argmax(-1)
    torch.manual_seed(seed)
    np.savez(path, x=x, y=y, **{name: value.numpy() for name, value in mlp().state_dict().items()})


def mlp() -> nn.Sequential:
    """The model, untrained."""
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


@functools.cache
def data(path: str) -> tuple[Tensor, Tensor]:
    """Samples (clients, samples, inputs) and labels (clients, samples)."""
    with np.load(path, allow_pickle=False) as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])


def first(path: str) -> dict[str, Tensor]:
    """The weights that training starts from."""
    with np.load(path, allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name]) for name in mlp().state_dict()}


@torch.no_grad()
def loss(path: str, weights: Mapping[str, Tensor]) -> float:
    """Mean cross-entropy of a model over all clients' samples."""
    model = mlp()
    model.load_state_dict(dict(weights))
    x, y = data(path)
    return nn.functional.cross_entropy(model(x.flatten(0, 1)), y.flatten()).item()


def mean(models: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of some models' weights."""
    return {name: torch.stack([model[name] for model in models]).mean(0) for name in models[0]}


def asked() -> tuple[str, str, int]:
    """What a runner is started with: the file, the method and how many rounds."""
    path, method, rounds = sys.argv[1:]
    return path, method, int(rounds)


def report(peer: str, method: str, seconds: list[float], final_loss: float) -> None:
    """Print the result; the first round is a warm-up and does not count."""
    each = statistics.median(seconds[1:])
    result = {
        "peer": peer,
        "method": method,
        "seconds": seconds,
        "seconds_per_round": each,
        "client_steps_per_second": CLIENTS * STEPS / each,
        "loss": final_loss,
    }
    print(json.dumps(result), flush=True)
