"""Three silos, a linear model, and the paper's arithmetic in NumPy float64: what a method's equations are held against.

Nothing of the engine's mathematics is used here. What is taken from it is what no equation fixes: the random start, and
the order in which a silo's samples fall into mini-batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.data.silo import Part, Silo
from coterie.engine.method import Cohort, Method
from coterie.engine.plan import BatchPlan
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training

FEATURES, CLASSES = 4, 3
SIZES = (11, 7, 6)
NAMES = ("north", "south", "east")


def _silos() -> list[Silo]:
    silos = []
    for i, (name, n) in enumerate(zip(NAMES, SIZES, strict=True)):
        draw = np.random.default_rng(100 + i)

        def part(count: int, draw: np.random.Generator = draw) -> Part:
            return Part(draw.normal(size=(count, FEATURES)).astype(np.float32), draw.integers(CLASSES, size=count))

        silos.append(Silo(name, part(n), part(5), part(4)))
    return silos


@dataclass
class Oracle:
    """The problem; vectors are W (3×4) and b (3) of the linear model, end to end."""

    training: Training = field(default_factory=lambda: Training(rounds=4, local_epochs=2, batch_size=4, lr=0.1))
    seed: int = 3

    def __post_init__(self) -> None:
        self.silos = _silos()
        self.model = Model(lambda: nn.Linear(FEATURES, CLASSES), CLASSES, dtype=torch.float64)
        self.sizes = np.array(SIZES, dtype=np.float64)
        self.m = len(SIZES)

    # Between rows and vectors.

    def vector(self, row: Tensor) -> np.ndarray:
        """A row (..., d) as vectors (..., 15), without the padding between layers."""
        named = self.model.layout.named(row)
        flat = [named["weight"].reshape(*row.shape[:-1], -1), named["bias"]]
        return torch.cat(flat, -1).numpy()

    def row(self, vector: np.ndarray) -> Tensor:
        """A vector (15,) as a row."""
        split = CLASSES * FEATURES
        weight = torch.from_numpy(vector[:split].reshape(CLASSES, FEATURES).copy())
        return self.model.layout.flatten({"weight": weight, "bias": torch.from_numpy(vector[split:].copy())})

    def start(self, *key: object) -> np.ndarray:
        """The random start: common, or of a key."""
        return self.vector(self.model.start(self.seed, *key))

    # The model's mathematics, by hand.

    def data(self, silo: int, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
        """x and y of a silo, in float64."""
        part: Part = getattr(self.silos[silo], split)
        return part.x.astype(np.float64), part.y

    def probabilities(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        """softmax(W x + b): (n, 3)."""
        weight, bias = w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), w[CLASSES * FEATURES :]
        z = x @ weight.T + bias
        e = np.exp(z - z.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def losses(self, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Cross-entropy of each sample (n,)."""
        return -np.log(self.probabilities(w, x)[np.arange(len(y)), y])

    def grad(self, w: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        """Gradient (15,) of the mean over the samples of weight × loss."""
        error = self.probabilities(w, x) - np.eye(CLASSES)[y]
        if weight is not None:
            error = error * weight[:, None]
        return np.concatenate([(error.T @ x).ravel(), error.sum(0)]) / len(y)

    # The order of the samples, which is a draw and not an equation.

    def batches(self, silo: int, round: int, purpose: str = "train", epochs: int | None = None) -> list[np.ndarray]:
        """Each step's sample indices."""
        t = self.training
        epochs = t.local_epochs if epochs is None else epochs
        counts = np.array([SIZES[silo]])
        plan = BatchPlan((NAMES[silo],), counts, t.batch_size, epochs, self.seed, purpose, round)
        return [step[step >= 0] for step in plan.order[0]]

    def descend(
        self,
        silo: int,
        w: np.ndarray,
        round: int,
        strength: float = 0.0,
        centre: np.ndarray | None = None,
        purpose: str = "train",
        epochs: int | None = None,
    ) -> np.ndarray:
        """Plain SGD over the silo's batches; with a strength s, proximal SGD on F_i + s/2 ‖w − centre‖².

        Its step is argmin_z ⟨g, z⟩ + ‖z − w‖²/2η + s/2 ‖z − c‖²: where g + (z − w)/η + s (z − c) is zero.
        """
        x, y = self.data(silo)
        for b in self.batches(silo, round, purpose, epochs):
            w = self.proximal(w, self.grad(w, x[b], y[b]), self.training.lr, strength, w if centre is None else centre)
        return w

    def proximal(self, w: np.ndarray, g: np.ndarray, lr: float, strength: float, centre: np.ndarray) -> np.ndarray:
        """One such step."""
        return (w / lr - g + strength * centre) / (1 / lr + strength)

    # The method under test.

    def engine(self, method: Method) -> Simulator:
        """The three silos as rows."""
        return Simulator(method, self.silos, self.model, self.training, self.seed)

    def play(self, method: Method, rounds: int, ids: Sequence[int] | Sequence[Sequence[int]] | None = None) -> "Played":
        """Some rounds of the method with these silos, or those of each round; everything that crossed or was kept."""
        engine = self.engine(method)
        played = Played(engine, [method.open(engine.roster, engine.model)], [engine.private()], [], [])
        for r in range(rounds):
            asked = range(self.m) if ids is None else ids
            asked = asked[r] if isinstance(asked[0], Sequence) else asked
            cohort = Cohort(torch.tensor(asked), r, engine.roster, engine.model)
            down = method.send(played.servers[-1], cohort)
            up = engine.train(cohort, down).up
            played.downs.append(down)
            played.ups.append(up)
            played.servers.append(method.receive(played.servers[-1], cohort, method.unpacked(down, up)))
            played.privates.append(engine.private())
        return played


@dataclass
class Played:
    """What happened: servers and privates before the first and after every round; downs and ups of every round."""

    engine: Simulator
    servers: list[Any]
    privates: list[Any]
    downs: list[Any]
    ups: list[Any]

    def deployed(self) -> Tensor:
        """The models (m, d) that all silos would deploy after the last round."""
        everyone = Cohort.everyone(self.engine.roster, self.engine.model, len(self.downs) - 1)
        return self.engine.personal(everyone, self.engine.method.send(self.servers[-1], everyone)).models


def close(ours: Any, theirs: Any) -> None:
    """Equal to float64 accuracy."""
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-9, atol=1e-11)
