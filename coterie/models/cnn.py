"""The convolutional network of McMahan et al. (2017), which the FedAMP paper uses on the MNIST family."""

from dataclasses import dataclass

import torch
from torch import nn

from coterie.errors import BadInput
from coterie.options import option


@dataclass(frozen=True)
class CNN:
    """Two 5×5 convolutions, each with 2×2 max-pooling, one hidden layer."""

    channels: tuple[int, ...] = option((32, 64), "channels of the convolutions", low=1)
    kernel: int = option(5, "their size", low=1)
    hidden: int = option(512, "units of the hidden layer", low=1)


def cnn(options: CNN, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The network for images of `shape` (channels, height, width); convolutions keep the size, pooling halves it."""
    if len(shape) != 3 or min(shape[1:]) < 2 ** len(options.channels):
        raise BadInput(f"[model] cnn takes images (channels, height, width) of a size that pools twice, not {shape}")
    layers: list[nn.Module] = []
    before = shape[0]
    for after in options.channels:
        layers += [nn.Conv2d(before, after, options.kernel, padding="same"), nn.ReLU(), nn.MaxPool2d(2)]
        before = after
    features = nn.Sequential(*layers, nn.Flatten())
    with torch.random.fork_rng(devices=[]):
        width = features(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*features, nn.Linear(width, options.hidden), nn.ReLU(), nn.Linear(options.hidden, outputs))
