"""MobileNetV2 (Sandler et al., 2018), for small images as FedEM uses it on CIFAR."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from coterie.errors import BadInput
from coterie.options import option

# Of each stage: expansion, channels, blocks, stride of the first block (Table 2 of the paper).
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


@dataclass(frozen=True)
class MobileNet:
    """Inverted residuals; names of layers are torchvision's."""

    width: float = option(1.0, "width multiplier of all channels", above=0, high=100)
    strides: Literal["small", "imagenet"] = option(
        "small", "of 32 pixels, leave 4 (strides 1 in the stem and the second stage) or 1, as for images of 224"
    )
    dropout: float = option(0.0, "before the last layer (0.2 in torchvision's)", low=0, below=1)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; and a way around where the shape stays."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        layers: list[nn.Module] = [_filtered(before, inner, 1, 1, 1)] if expansion != 1 else []
        layers += [_filtered(inner, inner, 3, stride, inner), nn.Conv2d(inner, after, 1, bias=False)]
        self.conv = nn.Sequential(*layers, nn.BatchNorm2d(after))
        self.around = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """conv(x), + x where that fits."""
        y: Tensor = self.conv(x)
        return x + y if self.around else y


class MobileNetV2(nn.Module):
    """Features, their mean, one linear layer."""

    def __init__(self, options: MobileNet, channels: int, outputs: int) -> None:
        super().__init__()
        small = options.strides == "small"
        before, last = _channels(32, options.width), _channels(1280, max(1.0, options.width))
        layers: list[nn.Module] = [_filtered(channels, before, 3, 1 if small else 2, 1)]
        for number, (expansion, wide, blocks, stride) in enumerate(STAGES):
            after = _channels(wide, options.width)
            for block in range(blocks):
                first = 1 if block or (small and number == 1) else stride
                layers.append(InvertedResidual(before, after, first, expansion))
                before = after
        self.features = nn.Sequential(*layers, _filtered(before, last, 1, 1, 1))
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        drop = nn.Dropout(options.dropout) if options.dropout else nn.Identity()
        self.classifier = nn.Sequential(drop, nn.Linear(last, outputs))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")
        nn.init.normal_(self.classifier[1].weight, 0, 0.01)  # type: ignore[arg-type]
        nn.init.zeros_(self.classifier[1].bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        y: Tensor = self.classifier(self.mean(self.features(x)))
        return y


def mobilenet_v2(options: MobileNet, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The network for images of `shape` (channels, height, width)."""
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise BadInput(f"[model] mobilenet_v2 takes images (channels, height, width) of at least 8×8, not {shape}")
    return MobileNetV2(options, shape[0], outputs)


def _filtered(before: int, after: int, size: int, stride: int, groups: int) -> nn.Sequential:
    conv = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU6())


def _channels(count: int, width: float) -> int:
    """The nearest multiple of 8, never more than 10% below what the multiplier says."""
    wanted = count * width
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded
