"""The group-wise splits of the FedAMP papers (AMP-pre §4.1 and C.1), by name."""

from typing import Any

_PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
_DIGITS_UPPER_LOWER = (tuple(range(10)), tuple(range(10, 36)), tuple(range(36, 62)))

RECIPES: dict[str, dict[str, Any]] = {  # the options of `groups` that a preset stands for
    "amp-mnist": {"members": (20,) * 5, "sizes": (500, 400, 300, 200, 100), "dominating": _PAIRS},
    "amp-fmnist": {"members": (20,) * 5, "sizes": (600, 500, 400, 300, 200), "dominating": _PAIRS},
    "amp-emnist": {"members": (10, 26, 26), "sizes": (1000, 700, 400), "dominating": _DIGITS_UPPER_LOWER},
    "amp-cifar100": {
        "members": (5,) * 20,
        "sizes": (500,) * 4 + (400,) * 4 + (300,) * 4 + (200,) * 4 + (100,) * 4,
        "dominating": "coarse",
    },
}
