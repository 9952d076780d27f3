"""ResNet-18 for small images (He et al., 2016): a 3×3 stem without pooling, as is usual on CIFAR."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.errors import BadInput
from coterie.options import option


@dataclass(frozen=True)
class ResNet:
    """Eighteen layers in four stages of two blocks."""

    width: int = option(64, "channels of the first stage; each later stage has twice as many", low=8)
    norm: Literal["batch", "group"] = option("batch", "BatchNorm, or GroupNorm, which keeps no running statistics")


class ResidualBlock(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = _norm(norm, after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = _norm(norm, after)
        around: list[nn.Module] = []
        if stride != 1 or before != after:
            around = [nn.Conv2d(before, after, 1, stride, bias=False), _norm(norm, after)]
        self.around = nn.Sequential(*around)

    def forward(self, x: Tensor) -> Tensor:
        """relu(convolutions(x) + x)."""
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + self.around(x))


def resnet18(options: ResNet, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The network for images of `shape` (channels, height, width)."""
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise BadInput(f"[model] resnet18 takes images (channels, height, width) of at least 8×8, not {shape}")
    wide, norm = options.width, options.norm
    layers: list[nn.Module] = [nn.Conv2d(shape[0], wide, 3, 1, 1, bias=False), _norm(norm, wide), nn.ReLU()]
    before = wide
    for stage in range(4):
        after = wide * 2**stage
        layers += [ResidualBlock(before, after, 1 if stage == 0 else 2, norm), ResidualBlock(after, after, 1, norm)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


def _norm(kind: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(8, channels)
