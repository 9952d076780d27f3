"""FedBN: everything is averaged but normalisation, which stays with its statistics."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from oracle import CLASSES, FEATURES, Oracle, close
from torch import Tensor, nn
from two_layers import COHORTS, TwoLayers, softmax

from coterie.conformance import CHECKS, Ground
from coterie.engine.method import Cohort
from coterie.engine.rows import Model
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbn import FedBN

HIDDEN, EPSILON, MOMENTUM = 5, 1e-5, 0.1
NAMES = ("0.weight", "2.weight", "2.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")
SIZES = (HIDDEN * FEATURES, CLASSES * HIDDEN, CLASSES, HIDDEN, HIDDEN, HIDDEN, HIDDEN)
NORM = np.arange(sum(SIZES)) >= sum(SIZES[:3])


class Normed(TwoLayers):
    """Vectors are W₁, W₂, b₂, then γ, β and the running mean and variance of u = W₁ x; logits are W₂ (γ û + β) + b₂."""

    def __post_init__(self) -> None:
        Oracle.__post_init__(self)
        self.model = Model(normed, CLASSES, dtype=torch.float64)
        self.training = self.training.__class__(rounds=4, local_epochs=2, batch_size=3, lr=0.1, whole_batches=True)

    def vector(self, row: Tensor) -> np.ndarray:
        named = self.model.layout.named(row)
        return torch.cat([named[name].reshape(*row.shape[:-1], -1) for name in NAMES], -1).numpy()

    def parts(self, w: np.ndarray) -> list[np.ndarray]:
        w1, w2, *others = np.split(w, np.cumsum(SIZES)[:-1])
        return [w1.reshape(HIDDEN, FEATURES), w2.reshape(CLASSES, HIDDEN), *others]

    def step(self, w: np.ndarray, x: np.ndarray, y: np.ndarray, only: np.ndarray) -> np.ndarray:
        """One step of SGD with the batch's own statistics; the running ones move towards them."""
        w1, w2, b2, gamma, beta, mean, var = self.parts(w)
        u, n = x @ w1.T, len(y)
        deviation = np.sqrt(u.var(0) + EPSILON)
        normal = (u - u.mean(0)) / deviation
        error = (softmax((gamma * normal + beta) @ w2.T + b2) - np.eye(CLASSES)[y]) / n
        back = error @ w2  # ∂/∂(γ û + β)
        scaled = back * gamma
        inner = (scaled - scaled.mean(0) - normal * (scaled * normal).mean(0)) / deviation
        grads = [inner.T @ x, error.T @ (gamma * normal + beta), error.sum(0), (back * normal).sum(0), back.sum(0)]
        moved = [p - self.training.lr * g for p, g in zip((w1, w2, b2, gamma, beta), grads, strict=True)]
        moved += [(1 - MOMENTUM) * mean + MOMENTUM * u.mean(0), (1 - MOMENTUM) * var + MOMENTUM * u.var(0, ddof=1)]
        return np.where(only, np.concatenate([part.ravel() for part in moved]), w)

    def trained(self, silo: int, w: np.ndarray, round: int, purpose: str = "train", only: object = True) -> np.ndarray:
        x, y = self.data(silo)
        for b in self.batches(silo, round, purpose):
            if len(b) == self.training.batch_size:
                w = self.step(w, x[b], y[b], np.broadcast_to(only, w.shape))  # type: ignore[arg-type]
        return w


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN, bias=False), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, CLASSES))


def test_rounds_with_missing_silos() -> None:
    """Algorithm 1: every layer that does not normalise is averaged; γ, β and statistics are each silo's own."""
    oracle = Normed()
    played = oracle.play_cohorts(FedBN())
    own, shared = np.stack([oracle.start()] * 3), oracle.start()
    for r, ids in enumerate(COHORTS):
        for i in ids:
            own[i] = oracle.trained(i, np.where(NORM, own[i], shared), r)
        shared = oracle.mean(own[ids], ids)
        close(oracle.vector(played.servers[r + 1].w)[~NORM], shared[~NORM])
        assert (oracle.vector(played.servers[r + 1].w)[NORM] == 0).all()
    close(oracle.vector(played.deployed()), np.where(NORM, own, shared))


def test_a_newcomer_takes_normalisation_of_its_own_data() -> None:
    oracle = Normed()
    server = oracle.play_cohorts(FedBN()).servers[-1]
    newcomers = oracle.engine(FedBN())
    down = newcomers.host(server, 4)
    models = newcomers.personal(Cohort.everyone(newcomers.roster, newcomers.model, 4), down).models  # type: ignore[attr-defined]
    for i in range(3):
        w = np.where(NORM, oracle.start(), oracle.vector(server.w))
        close(oracle.vector(models)[i], oracle.trained(i, w, 4, "personal", NORM))


def test_layers_are_found_by_what_they_are() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.normal, self.downsample = nn.Linear(FEATURES, 6), nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
            self.head = nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.downsample(self.normal(x)))
            return out

    assert set(FedBN().own(Model(Block, CLASSES)).names) == {"downsample.1.weight", "downsample.1.bias"}


def test_a_model_without_normalisation_is_fedavgs_bit_for_bit() -> None:
    oracle = TwoLayers()
    ours, theirs = (oracle.play_cohorts(method) for method in (FedBN(), FedAvg()))
    assert torch.equal(ours.servers[-1].w, theirs.servers[-1].w)
    assert torch.equal(ours.deployed(), theirs.deployed())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(check: Callable[[Ground], None]) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))

    ground = Ground(FedBN(), build)  # no batch of one sample
    check(Ground(FedBN(), build, training=ground.training.__class__(rounds=3, local_epochs=2, batch_size=11, lr=0.1)))
