"""The Synthetic federation of Marfoq et al., NeurIPS 2021: every silo mixes the same few linear components."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.data.allot import portion
from coterie.data.silo import Part, Silo
from coterie.options import option


@dataclass(frozen=True)
class Synthetic:
    """Options of the generator; the defaults are the paper's."""

    silos: int = option(300, "number of silos", low=1)
    components: int = option(3, "number of components mixed", low=1)
    alpha: float = option(0.4, "concentration of the silos' mixture weights, Dir(alpha)", above=0)
    dimension: int = option(150, "number of features", low=1)
    smallest: int = option(50, "samples of the smallest silo; sizes are log-normal above it", low=2)
    largest: int = option(1000, "samples of a silo at most", low=2)
    noise: float = option(0.1, "standard deviation of the noise before the sigmoid", low=0)
    test_share: float = option(0.2, "share of a silo's samples held out to test on", above=0, below=1)
    validation: float = option(0.2, "validation samples, as a share of the training samples", low=0, below=1)

    def __post_init__(self) -> None:
        if self.smallest > self.largest:
            raise ValueError(f"smallest = {self.smallest} is above largest = {self.largest}; swap them")


@dataclass(frozen=True)
class Truth:
    """What generated the labels."""

    theta: NDArray[np.float64]  # (components, dimension)
    pi: NDArray[np.float64]  # (silos, components) weights


def generate(options: Synthetic, rng: np.random.Generator) -> tuple[list[Silo], Truth]:
    """The silos and the truth behind them."""
    theta = rng.uniform(-1, 1, (options.components, options.dimension))
    pi = rng.dirichlet(np.full(options.components, options.alpha), options.silos)
    extra = np.minimum(rng.lognormal(4, 2, options.silos), options.largest).astype(np.int64)
    sizes = np.minimum(options.smallest + extra, options.largest)
    width = max(2, len(str(options.silos - 1)))
    silos = []
    for i, (size, weights) in enumerate(zip(sizes.tolist(), pi, strict=True)):
        # float32 from the start, so that the labels belong to the inputs a model will see.
        x = rng.uniform(-1, 1, (size, options.dimension)).astype(np.float32)
        z = rng.choice(options.components, size, p=weights)
        score = (x * theta[z]).sum(axis=1) + options.noise * rng.standard_normal(size)
        # A sigmoid above 1/2 is a score above 0. (The authors' code leaves many labels 0.)
        parts = _cut(x, (score > 0).astype(np.int64), options)
        silos.append(Silo(f"silo-{i:0{width}d}", *parts))
    return silos, Truth(theta, pi)


def truth_accuracy(truth: Truth, silos: Sequence[Silo], part: str = "test") -> list[float]:
    """The accuracy in each silo of the true components voting with the silo's true weights."""
    accuracies = []
    for silo, weights in zip(silos, truth.pi, strict=True):
        data: Part = getattr(silo, part)
        votes = (data.x @ truth.theta.T > 0) @ weights  # (n,)
        accuracies.append(float(((votes > 0.5) == data.y).mean()))
    return accuracies


def _cut(x: NDArray[np.float32], y: NDArray[np.int64], options: Synthetic) -> tuple[Part, Part, Part]:
    test = portion(options.test_share, len(y))
    validation = portion(options.validation, len(y) - test)
    ends = [len(y) - test - validation, len(y) - test]
    train_x, validation_x, test_x = np.split(x, ends)
    train_y, validation_y, test_y = np.split(y, ends)
    return Part(train_x, train_y), Part(validation_x, validation_y), Part(test_x, test_y)
