"""Three silos and a model of two layers, a body and a head, by hand in NumPy float64."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from oracle import CLASSES, FEATURES, Oracle, Played
from torch import Tensor, nn

from coterie.data.silo import Part
from coterie.engine.method import Cohort, Method
from coterie.engine.rows import Model

HIDDEN = 5
BODY = HIDDEN * FEATURES + HIDDEN
HEAD = CLASSES * HIDDEN + CLASSES
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
COHORTS = ([0, 1, 2], [0, 2], [1], [1, 2])  # who replies; what is lost on the way was never sent


@dataclass
class TwoLayers(Oracle):
    """Vectors are W₁ (5×4), b₁, W₂ (3×5), b₂: z = tanh(W₁ x + b₁), the logits are W₂ z + b₂."""

    body: ClassVar[np.ndarray] = np.arange(BODY + HEAD) < BODY
    head: ClassVar[np.ndarray] = ~body

    def __post_init__(self) -> None:
        super().__post_init__()
        self.model = Model(
            lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)),
            CLASSES,
            dtype=torch.float64,
        )

    def vector(self, row: Tensor) -> np.ndarray:
        named = self.model.layout.named(row)
        return torch.cat([named[name].reshape(*row.shape[:-1], -1) for name in NAMES], -1).numpy()

    def layers(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """W₁, b₁, W₂, b₂."""
        a, b, c, d = np.split(w, [HIDDEN * FEATURES, BODY, BODY + CLASSES * HIDDEN])
        return a.reshape(HIDDEN, FEATURES), b, c.reshape(CLASSES, HIDDEN), d

    def features(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        """z (n, 5)."""
        w1, b1, _, _ = self.layers(w)
        return np.tanh(x @ w1.T + b1)

    def logits(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        """(n, 3)."""
        _, _, w2, b2 = self.layers(w)
        return self.features(w, x) @ w2.T + b2

    def probabilities(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        return softmax(self.logits(w, x))

    def back(self, w: np.ndarray, x: np.ndarray, error: np.ndarray, more: np.ndarray | float = 0.0) -> np.ndarray:
        """The gradient by the chain rule, of errors ∂/∂logits (n, 3) and what comes beside them as ∂/∂z (n, 5)."""
        _, _, w2, _ = self.layers(w)
        z = self.features(w, x)
        inner = (error @ w2 + more) * (1 - z**2)
        return np.concatenate([(inner.T @ x).ravel(), inner.sum(0), (error.T @ z).ravel(), error.sum(0)])

    def grad(self, w: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        assert weight is None
        return self.back(w, x, (self.probabilities(w, x) - np.eye(CLASSES)[y]) / len(y))

    def descend_on(
        self,
        part: np.ndarray,
        silo: int,
        w: np.ndarray,
        round: int,
        purpose: str = "train",
        epochs: int | None = None,
    ) -> np.ndarray:
        """SGD on a part of the vector alone."""
        x, y = self.data(silo)
        for b in self.batches(silo, round, purpose, epochs):
            w = np.where(part, w - self.training.lr * self.grad(w, x[b], y[b]), w)
        return w

    def mean(self, models: Sequence[np.ndarray], silos: Sequence[int]) -> np.ndarray:
        """Weighted by samples."""
        return self.sizes[list(silos)] @ np.stack(models) / self.sizes[list(silos)].sum()

    def play_cohorts(self, method: Method, cohorts: Sequence[Sequence[int]] = COHORTS) -> Played:
        """A round for each cohort; everything that crossed or was kept."""
        engine = self.engine(method)
        played = Played(engine, [method.open(engine.roster, engine.model)], [engine.private()], [], [])
        for r, ids in enumerate(cohorts):
            cohort = Cohort(torch.tensor(ids), r, engine.roster, engine.model)
            played.downs.append(method.send(played.servers[-1], cohort))
            played.ups.append(engine.train(cohort, played.downs[-1]).up)
            up = method.unpacked(played.downs[-1], played.ups[-1])
            played.servers.append(method.receive(played.servers[-1], cohort, up))
            played.privates.append(engine.private())
        return played

    def clouds(self, played: Played) -> Tensor:
        """The models (m, d) that the server keeps for all silos after the last round."""
        engine, last = played.engine, len(played.downs) - 1
        everyone = Cohort.everyone(engine.roster, engine.model, last)
        task = engine.task(everyone.ids, last)
        cloud = engine.method.cloud(task, engine.method.send(played.servers[-1], everyone), played.privates[-1])
        assert cloud is not None
        return cloud.models  # type: ignore[attr-defined]


def lacking() -> TwoLayers:
    """The second silo lacks a class."""
    oracle = TwoLayers()
    silo = oracle.silos[1]
    oracle.silos[1] = type(silo)(silo.name, Part(silo.train.x, silo.train.y % 2), silo.validation, silo.test)
    return oracle


def softmax(z: np.ndarray) -> np.ndarray:
    """Of each row."""
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)
