"""The Synthetic federation of Marfoq et al., NeurIPS 2021: every silo mixes the same few linear components."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coterie.data.allot import MOST_SAMPLES, MOST_SILOS, portion
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
    test: int = option(
        0,
        "test samples of a silo; they and its validation samples are then drawn beside its others; 0: cut from these",
        low=0,
        high=MOST_SAMPLES,
    )

    def __post_init__(self) -> None:
        if self.smallest > self.largest:
            raise ValueError(f"smallest = {self.smallest} is above largest = {self.largest}; swap them")
        most = portion(1 + self.validation, self.largest) + self.test if self.test else self.largest
        numbers = (self.silos * most + self.components) * self.dimension + self.silos * self.components
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
        ends = _ends(size, options)
        x = rng.uniform(-1, 1, (ends[-1], options.dimension)).astype(np.float32)
        z = rng.choice(options.components, ends[-1], p=weights)
        score = (x * theta[z]).sum(axis=1) + options.noise * rng.standard_normal(ends[-1])
        # Every sample gets its label. (The authors' code leaves many 0.) A sigmoid above 1/2 is a score above 0.
        y = rng.random(ends[-1]) < sigmoid(score) if options.labels == "drawn" else score > 0
        parts = zip(np.split(x, ends[:-1]), np.split(y.astype(np.int64), ends[:-1]), strict=True)
        silos.append(Silo(f"silo-{i:0{width}d}", *[Part(*both) for both in parts]))
    return silos, Truth(theta, pi, options.labels == "drawn")


def draw_sizes(options: Synthetic, rng: np.random.Generator) -> NDArray[np.int64]:
    """The samples of each silo."""
    extra = np.minimum(rng.lognormal(4, 2, options.silos), options.largest).astype(np.int64)
    return np.minimum(options.smallest + extra, options.largest)


def sigmoid(score: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probability of the second class."""
    return 1 / (1 + np.exp(-score))


def _ends(size: int, options: Synthetic) -> list[int]:
    """Where train, validation and test end, in the order in which samples are drawn."""
    if options.test:
        validation = portion(options.validation, size)
        return [size, size + validation, size + validation + options.test]
    test = portion(options.test_share, size)
    return [size - test - portion(options.validation, size - test), size - test, size]
