"""Low-rank adapters (Hu et al., ICLR 2022): W stays, and B A of a small rank is trained beside it."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from coterie.errors import BadInput, nearest
from coterie.options import option


@dataclass(frozen=True)
class LoRA:
    """Which layers have an adapter, and of what size."""

    rank: int = option(8, "of B A", low=1, high=1 << 16)
    alpha: float = option(16.0, "B A counts alpha / rank times", above=0)
    targets: tuple[str, ...] = option(("*",), "linear and convolutional layers by name, with *; what trains has none")


class Adapted:
    """A layer with an adapter beside its W."""

    lora_A: Any
    lora_B: Any
    scale: float

    def forward(self, x: Tensor) -> Tensor:
        """W is one for all rows, so its product is one over all their samples."""
        out: Tensor = super().forward(x) + self.lora_B(self.lora_A(x)) * self.scale  # type: ignore[misc]
        return out


class LoRALinear(Adapted, nn.Linear):
    """x Wᵀ + b + (alpha / rank) (x Aᵀ) Bᵀ."""

    def adapt(self, rank: int) -> None:
        """Make A and B."""
        how: dict[str, Any] = {"bias": False, "device": self.weight.device, "dtype": self.weight.dtype}
        self.lora_A = nn.Linear(self.in_features, rank, **how)
        self.lora_B = nn.Linear(rank, self.out_features, **how)

    def product(self) -> Tensor:
        """B A."""
        made: Tensor = self.lora_B.weight @ self.lora_A.weight
        return made


class LoRAConv2d(Adapted, nn.Conv2d):
    """The same of a convolution: A is one to `rank` channels, B one by one pixel."""

    def adapt(self, rank: int) -> None:
        """Make A and B."""
        how: dict[str, Any] = {"bias": False, "device": self.weight.device, "dtype": self.weight.dtype}
        window = {key: getattr(self, key) for key in ("kernel_size", "stride", "padding", "dilation", "padding_mode")}
        self.lora_A = nn.Conv2d(self.in_channels, rank, **window, **how)
        self.lora_B = nn.Conv2d(rank, self.out_channels, 1, **how)

    def product(self) -> Tensor:
        """B A."""
        return torch.einsum("or,rikl->oikl", self.lora_B.weight[:, :, 0, 0], self.lora_A.weight)


KINDS: dict[type[nn.Module], type[LoRALinear | LoRAConv2d]] = {nn.Linear: LoRALinear, nn.Conv2d: LoRAConv2d}


def add_lora(module: nn.Module, options: LoRA) -> nn.Module:
    """The module with adapters: A Gaussian, B zero. Layers whose weights train, and grouped convolutions, have none."""
    known = {
        name: layer
        for name, layer in module.named_modules()
        if type(layer) in KINDS and not layer.weight.requires_grad and getattr(layer, "groups", 1) == 1
    }
    if not known:
        raise BadInput(
            "[model] lora: no layer is a frozen nn.Linear, or nn.Conv2d of one group, and others have no adapter"
        )
    for target in options.targets:
        if not any(fnmatchcase(name, target) for name in known):
            raise BadInput(f"[model] lora: no frozen layer is named '{target}'; {nearest(target, known)}")
    for name, layer in known.items():
        if any(fnmatchcase(name, target) for target in options.targets):
            layer.__class__ = KINDS[type(layer)]
            assert isinstance(layer, LoRALinear | LoRAConv2d)
            layer.scale = options.alpha / options.rank
            layer.adapt(options.rank)
            nn.init.normal_(layer.lora_A.weight, std=1 / options.rank)
            nn.init.zeros_(layer.lora_B.weight)
    return module


def adapted(module: nn.Module) -> "Iterator[tuple[str, LoRALinear | LoRAConv2d]]":
    """The layers that have an adapter, and their names."""
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, LoRALinear | LoRAConv2d))


@torch.no_grad()
def merge_lora(module: nn.Module) -> nn.Module:
    """The module with every B A added to its W, and no adapters."""
    for _, layer in list(adapted(module)):
        layer.weight += layer.scale * layer.product()
        del layer.lora_A, layer.lora_B, layer.scale
        layer.__class__ = next(plain for plain, with_adapter in KINDS.items() if type(layer) is with_adapter)  # type: ignore[assignment]
    return module
