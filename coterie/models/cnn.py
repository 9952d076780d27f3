"""The convolutional network of McMahan et al. (2017), which FedAMP uses; FedEM's and APPLE's differ in sizes."""

import math
from dataclasses import dataclass
from typing import Literal

from torch import nn

from coterie.errors import BadInput
from coterie.options import option


@dataclass(frozen=True)
class CNN:
    """Two 5×5 convolutions, each with 2×2 max-pooling, one hidden layer."""

    channels: tuple[int, ...] = option((32, 64), "channels of the convolutions", low=1)
    kernel: int = option(5, "their size", low=1)
    hidden: int = option(512, "units of the hidden layer", low=1)
    padding: Literal["same", "valid"] = option("same", "convolutions keep the size, or lose what has no full window")


@dataclass(frozen=True)
class CNNEm(CNN):
    """FedEM's for EMNIST and FEMNIST (its authors pad nothing)."""

    hidden: int = option(2048, "units of the hidden layer", low=1)
    padding: Literal["same", "valid"] = option("valid", "convolutions keep the size, or lose what has no full window")


@dataclass(frozen=True)
class CNNApple(CNN):
    """APPLE's."""

    channels: tuple[int, ...] = option((20, 50), "channels of the convolutions", low=1)
    hidden: int = option(500, "units of the hidden layer", low=1)
    padding: Literal["same", "valid"] = option("valid", "convolutions keep the size, or lose what has no full window")


def cnn(options: CNN, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The network for images of `shape` (channels, height, width); pooling halves them."""
    pooled = _sizes(options, shape)
    if len(shape) != 3 or min(pooled) < 1:
        raise BadInput(f"[model] cnn takes images (channels, height, width) of a size that pools twice, not {shape}")
    layers: list[nn.Module] = []
    before = shape[0]
    for after in options.channels:
        layers += [nn.Conv2d(before, after, options.kernel, padding=options.padding), nn.ReLU(), nn.MaxPool2d(2)]
        before = after
    hidden = nn.Linear(before * math.prod(pooled), options.hidden)
    return nn.Sequential(*layers, nn.Flatten(), hidden, nn.ReLU(), nn.Linear(options.hidden, outputs))


def _sizes(options: CNN, shape: tuple[int, ...]) -> list[int]:
    """Height and width after the last pooling."""
    sizes = list(shape[1:])
    for _ in options.channels:
        lost = options.kernel - 1 if options.padding == "valid" else 0
        sizes = [max(size - lost, 0) // 2 for size in sizes]
    return sizes
