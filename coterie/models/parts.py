"""Parts of a module by name: its head, its body, its norms; and which of them stay as they are."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from coterie.errors import BadInput, nearest
from coterie.options import option, resolved

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
WORDS = ("head", "body", "norm")


@dataclass(frozen=True)
class Parts:
    """What a `[model]` table may say of any model."""

    head: str | None = option(None, "the layer that is the head, where it is not the last layer with weights")
    freeze: tuple[str, ...] = option((), "what stays as it is: names with *, layers, or head, body, norm")
    train: tuple[str, ...] = option((), "what trains in spite of that")

    def __post_init__(self) -> None:
        if self.train and not self.freeze:
            raise ValueError("train names what is left of freeze; give freeze too, e.g. freeze = ['*']")

    def as_table(self) -> dict[str, Any]:
        """What is not as in any model."""
        return {key: value for key, value in resolved(self).items() if value != []}


@dataclass(frozen=True)
class Blueprint:
    """What makes a module: a function, or a module to copy; and what of it trains."""

    make: Callable[[], nn.Module] | nn.Module
    parts: Parts = Parts()

    def __call__(self) -> nn.Module:
        """The module."""
        made = copy.deepcopy(self.make) if isinstance(self.make, nn.Module) else self.make()
        return freeze(made, self.parts.freeze, self.parts.train, self.parts.head) if self.parts.freeze else made

    @property
    def supposes_head(self) -> bool:
        """Whether what trains goes by which layer is the head, and nobody said which."""
        return self.parts.head is None and not {"head", "body"}.isdisjoint((*self.parts.freeze, *self.parts.train))


class Still:
    """A layer that normalises by the statistics it has, in training as well."""

    def train(self, mode: bool = True) -> "Still":
        """Stay in evaluation mode."""
        return super().train(False)  # type: ignore[misc,no-any-return]


def freeze(module: nn.Module, frozen: Sequence[str], trained: Sequence[str], head: str | None = None) -> nn.Module:
    """The module with the parameters of some patterns frozen, but for those of others.

    A layer that normalises and has nothing left to train stays in evaluation mode. Without a name, the head is the last
    layer with weights in the order in which the module has them.
    """

    def name() -> str:
        return last_layer(module) if head is None else head

    stay = {each for pattern in frozen for each in named(module, pattern, name)}
    stay -= {each for pattern in trained for each in named(module, pattern, name)}
    for each, parameter in module.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and each not in stay)
    for layer in module.modules():
        own = list(layer.parameters(recurse=False))
        if isinstance(layer, NORMS) and own and not any(p.requires_grad for p in own):
            layer.__class__ = type(type(layer).__name__, (Still, type(layer)), {"__module__": type(layer).__module__})
            layer.eval()
    return module


def last_layer(module: nn.Module) -> str:
    """The last layer with weights, in the order in which the module has them."""
    names: list[str] = [name for name, layer in module.named_modules() if list(layer.parameters(recurse=False))]
    return names[-1]


def named(module: nn.Module, pattern: str, head: Callable[[], str], empty: bool = False) -> set[str]:
    """The parameters and buffers that a pattern names; an error, where it names none and that may not be."""
    if not (found := _named(module, pattern, head)) and not empty:
        layers = [name for name, _ in module.named_modules() if name]
        raise BadInput(f"the model has nothing named '{pattern}'; {nearest(pattern, [*WORDS, *layers])}")
    return found


def _named(module: nn.Module, pattern: str, head: Callable[[], str]) -> set[str]:
    known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    if pattern == "head":
        return _inside(module, [module.get_submodule(head())])
    if pattern == "body":
        return known - _named(module, "head", head)
    if pattern == "norm":
        return _inside(module, [layer for layer in module.modules() if isinstance(layer, NORMS)])
    return {name for name in known if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}


def _inside(module: nn.Module, layers: Sequence[nn.Module]) -> set[str]:
    """What the parameters and buffers of some layers are called, where tied weights have one name."""
    inside = {id(t) for layer in layers for t in (*layer.parameters(), *layer.buffers())}
    every = (*module.named_parameters(), *module.named_buffers())
    return {name for name, t in every if id(t) in inside}
