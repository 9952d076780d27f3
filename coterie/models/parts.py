"""Parts of a module by name: its head, its body, its norms; and which of them stay as they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from coterie.errors import BadInput, nearest
from coterie.models.copied import copied
from coterie.models.lora import LoRA, add_lora
from coterie.models.weights import file_checksum, load_weights
from coterie.options import option, resolved

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
FROM_FILES = ("weights", "weights_sha256")  # which a model that is saved has in its own file
MATRICES = ("lora_A", "lora_B")  # of all adapters
WORDS = {  # and what a model lacks in which one names nothing
    "head": "no weights in its head", "body": "no layer beside its head", "norm": "no layer that normalises",
    **dict.fromkeys(MATRICES, "no adapters"),
}  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """What a `[model]` table may say of any model."""

    head: str | None = option(None, "the layer that is the head, where it is not the last layer with weights")
    freeze: tuple[str, ...] = option((), "what stays as it is: names with *, layers, or head, body, norm")
    train: tuple[str, ...] = option((), "what trains in spite of that")
    weights: str | None = option(
        None, "a .safetensors file to start from, with the module's names; a head of other size starts at random"
    )
    weights_sha256: str | None = option(None, "of that file; written back")
    lora: LoRA | None = option(None, "adapters: all else is frozen, but for what `train` names")

    @property
    def frozen(self) -> tuple[str, ...]:
        """What is frozen of the module itself."""
        own = tuple(pattern for pattern in self.freeze if self.lora is None or pattern not in MATRICES)
        return ("*",) if self.lora is not None and not own else own

    def __post_init__(self) -> None:
        if self.train and not self.frozen:
            raise ValueError("train names what is left of freeze; give freeze too, e.g. freeze = ['*']")

    def with_checksum(self) -> "Parts":
        """With that of the file of weights."""
        if self.weights is None or self.weights_sha256 is not None:
            return self
        return replace(self, weights_sha256=file_checksum(self.weights))

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
        made, parts = copied(self.make) if isinstance(self.make, nn.Module) else self.make(), self.parts
        if parts.weights is not None:
            head = named(made, "head", lambda: last_layer(made) if parts.head is None else parts.head)
            load_weights(made, parts.weights, parts.weights_sha256, head)
        if parts.frozen:
            freeze(made, parts.frozen, parts.train, parts.head)
        if parts.lora is not None:
            add_lora(made, parts.lora)
            for matrix in {*MATRICES}.intersection(parts.freeze):
                freeze(made, [matrix], [])
        return made

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

    BatchNorm that has nothing left to train stays in evaluation mode. Without a name, the head is the last
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
        by_batch = isinstance(layer, nn.modules.batchnorm._NormBase) and not isinstance(layer, Still)
        if by_batch and own and not any(p.requires_grad for p in own):
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
        if pattern in WORDS:
            raise BadInput(f"the model has {WORDS[pattern]}, so '{pattern}' names nothing in it")
        layers = [name for name, _ in module.named_modules() if name]
        raise BadInput(f"the model has nothing named '{pattern}'; {nearest(pattern, [*WORDS, *layers])}")
    return found


def _named(module: nn.Module, pattern: str, head: Callable[[], str]) -> set[str]:
    known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    if pattern == "head":
        layers = dict(module.named_modules(remove_duplicate=False))
        if (name := head()) not in layers:
            raise BadInput(f"the model has no layer '{name}' to be its head; {nearest(name, filter(None, layers))}")
        return _inside(module, [layers[name]])
    if pattern == "body":
        return known - _named(module, "head", head)
    if pattern == "norm":
        return _inside(module, [layer for layer in module.modules() if isinstance(layer, NORMS)])
    if pattern in MATRICES:
        pattern = f"*{pattern}.weight"
    return {name for name in known if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}


def _inside(module: nn.Module, layers: Sequence[nn.Module]) -> set[str]:
    """What the parameters and buffers of some layers are called, where tied weights have one name."""
    inside = {id(t) for layer in layers for t in (*layer.parameters(), *layer.buffers())}
    every = (*module.named_parameters(), *module.named_buffers())
    return {name for name, t in every if id(t) in inside}
