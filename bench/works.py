"""What is timed: a model, how many silos, a batch, an optimiser. Data are noise of the right shape."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import nn

from coterie.data.silo import Part, Silo
from coterie.engine.method import Method
from coterie.engine.training import Training
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedavg import FedAvg
from coterie.models import build


@dataclass(frozen=True)
class Work:
    """One line of the table."""

    name: str
    device: str
    model: dict[str, object]
    shape: tuple[int, ...]
    classes: int
    silos: int
    batch: int
    optimizer: Literal["sgd", "adam"]
    method: Method
    precision: str = "float32"
    batches: int = 10  # mini-batches of a silo in an epoch
    epochs: int = 1  # of a round
    tokens: int = 0  # samples are that many kinds of characters, not numbers
    asked: bool = False  # left out unless asked for by name

    @property
    def steps(self) -> int:
        """Mini-batches of a silo in a round."""
        return self.batches * self.epochs

    def factory(self) -> Callable[[], nn.Module]:
        """Makes the model."""
        return build(self.model, self.shape, self.classes)[0]

    def training(self) -> Training:
        """One round."""
        lr = 1e-3 if self.optimizer == "adam" else 0.05
        return Training(rounds=1, local_epochs=self.epochs, batch_size=self.batch, optimizer=self.optimizer, lr=lr)

    def data(self) -> list[Silo]:
        """Noise."""
        rng = np.random.default_rng(0)

        def part(n: int) -> Part:
            x = (
                rng.integers(self.tokens, size=(n, *self.shape))
                if self.tokens
                else rng.standard_normal((n, *self.shape))
            )
            return Part(x if self.tokens else x.astype(np.float32), rng.integers(self.classes, size=n))

        return [Silo(f"silo-{i:03d}", part(self.batches * self.batch), part(1), part(1)) for i in range(self.silos)]


SMALL: dict[str, object] = {"name": "cnn", "channels": [16, 32], "kernel": 3, "hidden": 64}
DIGIT, MNIST, CIFAR = (1, 8, 8), (1, 28, 28), (3, 32, 32)
WORKS = [
    Work("linear-100", "cpu", {"name": "linear"}, DIGIT, 10, 100, 32, "sgd", FedAvg()),
    Work("mlp-100", "cpu", {"name": "mlp", "hidden": [128]}, DIGIT, 10, 100, 32, "sgd", FedAvg()),
    Work("cnn8-50", "cpu", SMALL, DIGIT, 10, 50, 32, "sgd", FedAvg()),
    Work("cnn-10", "cpu", {"name": "cnn"}, MNIST, 10, 10, 32, "sgd", FedAvg(), batches=3),
    Work("cnn-62", "cuda", {"name": "cnn"}, MNIST, 62, 62, 100, "adam", FedAMP(), "bf16", batches=5, epochs=10),
    Work("resnet18-25", "cuda", {"name": "resnet18"}, CIFAR, 100, 25, 100, "adam", FedAvg(), "bf16", 5, epochs=2),
    Work("mobilenet-25", "cuda", {"name": "mobilenet_v2"}, CIFAR, 100, 25, 100, "sgd", FedAvg(), "bf16", 5, asked=True),
    Work("char-lstm-25", "cuda", {"name": "char-lstm"}, (80,), 80, 25, 100, "sgd", FedAvg(), "bf16", 5,
         tokens=80, asked=True),
]  # fmt: skip
