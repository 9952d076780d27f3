"""The group-wise splits of the FedAMP papers (AMP-pre §4.1 and C.1), by name."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Recipe:
    """What a preset of the `groups` split stands for."""

    members: tuple[int, ...]  # silos in each group
    sizes: tuple[int, ...]  # training samples of a silo, by group
    dominating: tuple[tuple[int, ...], ...] | Literal["even", "coarse"]


_PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
_DIGITS_UPPER_LOWER = (tuple(range(10)), tuple(range(10, 36)), tuple(range(36, 62)))

RECIPES: dict[str, Recipe] = {
    "amp-mnist": Recipe((20,) * 5, (500, 400, 300, 200, 100), _PAIRS),
    "amp-fmnist": Recipe((20,) * 5, (600, 500, 400, 300, 200), _PAIRS),
    "amp-emnist": Recipe((10, 26, 26), (1000, 700, 400), _DIGITS_UPPER_LOWER),
    "amp-cifar100": Recipe(
        (5,) * 20, (500,) * 4 + (400,) * 4 + (300,) * 4 + (200,) * 4 + (100,) * 4, dominating="coarse"
    ),
}
