"""Linear and multi-layer models of flat inputs."""

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from coterie.options import option


@dataclass(frozen=True)
class Linear:
    """One linear layer (with cross-entropy: multinomial logistic regression)."""

    bias: bool = option(True, "with an intercept")


@dataclass(frozen=True)
class MLP:
    """Fully connected layers with ReLU between them."""

    hidden: tuple[int, ...] = option((128,), "units of the hidden layers", low=1)


def linear(options: Linear, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Flatten, then one layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs, bias=options.bias))


def mlp(options: MLP, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Flatten, then the layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise((math.prod(shape), *options.hidden)):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(options.hidden[-1] if options.hidden else math.prod(shape), outputs))
