"""The Synthetic federation of Marfoq et al., NeurIPS 2021: every silo mixes the same few linear components."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coterie.data.allot import MOST_SILOS, portion
from coterie.data.silo import Part, Silo
from coterie.options import option

LARGEST = 1 << 31  # numbers in all


@dataclass(frozen=True)
class Synthetic:
    """Options of the generator; the defaults are the paper's."""

    silos: int = option(300, "number of silos", low=1, high=MOST_SILOS)
    components: int = option(3, "number of components mixed", low=1)
    alpha: float = option(0.4, "concentration of the silos' mixture weights, Dir(alpha)", above=0)
    dimension: int = option(150, "number of features", low=1)
    smallest: int = option(50, "samples of the smallest silo; sizes are log-normal above it", low=2)
    largest: int = option(1000, "samples of a silo at most", low=2)
    noise: float = option(0.1, "standard deviation of the noise before the sigmoid", low=0)
    labels: Literal["drawn", "rounded"] = option("drawn", "y with the sigmoid's probability, or the likelier class")
    test_share: float = option(0.2, "share of a silo's samples held out to test on", above=0, below=1)
    validation: float = option(0.2, "validation samples, as a share of the training samples", low=0, below=1)

    def __post_init__(self) -> None:
        if self.smallest > self.largest:
            raise ValueError(f"smallest = {self.smallest} is above largest = {self.largest}; swap them")
        numbers = (self.silos * self.largest + self.components) * self.dimension + self.silos * self.components
        if numbers > LARGEST:
            raise ValueError(f"up to {numbers} numbers, more than the limit of {LARGEST}; make fewer or smaller silos")


@dataclass(frozen=True)
class Truth:
    """What generated the labels."""

    theta: NDArray[np.float64]  # (components, dimension)
    pi: NDArray[np.float64]  # (silos, components) weights
    drawn: bool  # labels were drawn with the sigmoid's probability


def generate(options: Synthetic, rng: np.random.Generator) -> tuple[list[Silo], Truth]:
    """The silos and the truth behind them."""
    theta = rng.uniform(-1, 1, (options.components, options.dimension))
    pi = rng.dirichlet(np.full(options.components, options.alpha), options.silos)
    sizes = draw_sizes(options, rng)
    width = max(2, len(str(options.silos - 1)))
    silos = []
    for i, (size, weights) in enumerate(zip(sizes.tolist(), pi, strict=True)):
        # float32 from the start, so that the labels belong to the inputs a model will see.
        x = rng.uniform(-1, 1, (size, options.dimension)).astype(np.float32)
        z = rng.choice(options.components, size, p=weights)
        score = (x * theta[z]).sum(axis=1) + options.noise * rng.standard_normal(size)
        # Every sample gets its label. (The authors' code leaves many 0.) A sigmoid above 1/2 is a score above 0.
        y = rng.random(size) < _sigmoid(score) if options.labels == "drawn" else score > 0
        silos.append(Silo(f"silo-{i:0{width}d}", *_cut(x, y.astype(np.int64), options)))
    return silos, Truth(theta, pi, options.labels == "drawn")


def draw_sizes(options: Synthetic, rng: np.random.Generator) -> NDArray[np.int64]:
    """The samples of each silo."""
    extra = np.minimum(rng.lognormal(4, 2, options.silos), options.largest).astype(np.int64)
    return np.minimum(options.smallest + extra, options.largest)


def truth_accuracy(truth: Truth, silos: Sequence[Silo], part: str = "test") -> list[float]:
    """The accuracy in each silo of the true components voting with the silo's true weights."""
    accuracies = []
    for silo, weights in zip(silos, truth.pi, strict=True):
        data: Part = getattr(silo, part)
        score = data.x @ truth.theta.T
        votes = (_sigmoid(score) if truth.drawn else score > 0) @ weights  # (n,)
        accuracies.append(float(((votes > 0.5) == data.y).mean()))
    return accuracies


def _sigmoid(score: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-score))


def _cut(x: NDArray[np.float32], y: NDArray[np.int64], options: Synthetic) -> list[Part]:
    """Train, validation and test, in the order in which samples were drawn."""
    test = portion(options.test_share, len(y))
    validation = portion(options.validation, len(y) - test)
    ends = [len(y) - test - validation, len(y) - test]
    return [Part(*both) for both in zip(np.split(x, ends), np.split(y, ends), strict=True)]
