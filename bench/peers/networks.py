"""The networks of the work. Their state is their weights alone, so that every library averages the same."""

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F


def mlp() -> nn.Module:
    """64-128-10."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def cnn() -> nn.Module:
    """The CNN of McMahan et al., AISTATS 2017, for images of 28 by 28."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def norm(channels: int) -> nn.Module:
    """BatchNorm by the batch's own statistics: running ones are no weights, and every library treats them otherwise."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), norm(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), norm(after),
        )  # fmt: skip
        nn.init.zeros_(self.inner[4].weight)  # steps from there do not blow rounding up, nor the loss
        around = [] if before == after else [nn.Conv2d(before, after, 1, stride, bias=False), norm(after)]
        self.around = nn.Sequential(*around)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x) + self.around(x))


def resnet18() -> nn.Module:
    """ResNet-18 of He et al., CVPR 2016, as it begins for ImageNet."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), norm(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = [64, 64, 128, 256, 512]
    stages = [
        block
        for before, after in pairwise(widths)
        for block in (Residual(before, after, 1 if after == 64 else 2), Residual(after, after, 1))
    ]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn, "resnet18": resnet18}
