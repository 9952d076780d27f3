"""The head of a module: its last layer with weights, by the order in which layers run, and the features it is given."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from coterie.engine.reference import REAL, Reference, same
from coterie.errors import BadInput, nearest

Calls = list[tuple[nn.Module, tuple[Any, ...]]]


@dataclass(frozen=True)
class Head:
    """A layer of a module and the shape of what it is given for a sample."""

    name: str
    features: tuple[int, ...]


def find_head(call: Reference, x: Tensor, given: str | None, tolerance: float) -> Head | None:
    """The head of a module, tried on samples x (2, n, ...) of two rows; None where no layer is known to be it."""
    # Two numbers of samples, so that an axis of steps is not taken for that of the samples.
    modes = [_calls(call, x[0], training=False), _calls(call, x[0, :REAL], training=True)]
    layer, trained = (_last(calls) if given is None else call.module.get_submodule(given) for calls in modes)
    shapes = [_features(calls, layer, n) for calls, n in zip(modes, (x.shape[1], REAL), strict=True)]
    if shapes[0] is None or shapes[1] is None:
        if given is None:
            return None
        raise BadInput(
            f"the model's head '{given}' does not run just once on one tensor of all samples; name another: "
            '[model] head = "…"'
        )
    if layer is None or (given is None and (layer is not trained or not _decides(call, x, layer, tolerance))):
        return None
    name = next(name for name, known in call.module.named_modules() if known is layer)
    return Head(name, shapes[0])


def check_name(module: nn.Module, head: str) -> None:
    """Refuse a head that the module does not have."""
    names = [name for name, _ in module.named_modules(remove_duplicate=False)]
    if head not in names:
        raise BadInput(f"the model has no layer '{head}' to be its head; {nearest(head, filter(None, names))}")
    if not list(module.get_submodule(head).parameters()):
        raise BadInput(
            f"the model's layer '{head}' has no weights, so it is no head; name another: [model] head = \"…\""
        )


def _calls(call: Reference, x: Tensor, training: bool) -> Calls:
    """Which layers run, in the order in which they begin, and what they are given."""
    calls: Calls = []
    with ExitStack() as hooks:
        for layer in call.module.modules():
            hooks.enter_context(layer.register_forward_pre_hook(lambda *seen: calls.append(seen)))
        call(0, x, training, slope=False)
    return calls


def _last(calls: Calls) -> nn.Module | None:
    """The last layer that begins with something in hand: what computes a layer's weights is called with nothing."""
    return next((layer for layer, given in reversed(calls) if given and _has_weights(layer)), None)


def _has_weights(layer: nn.Module) -> bool:
    return bool(list(layer.parameters(recurse=False))) or is_parametrized(layer)


def _features(calls: Calls, layer: nn.Module | None, samples: int) -> tuple[int, ...] | None:
    """The shape of a sample's features, where the layer runs once and they are all that it is given."""
    each = [given for called, given in calls if called is layer]
    if len(each) != 1 or len(each[0]) != 1:
        return None
    (features,) = each[0]
    if not isinstance(features, Tensor) or features.ndim == 0 or len(features) != samples:
        return None
    return tuple(features.shape[1:])


def _decides(call: Reference, x: Tensor, layer: nn.Module, tolerance: float) -> bool:
    """Whether the output is made of the layer's alone: given the first row's, the second gives the first's output."""
    kept: list[Any] = []
    with layer.register_forward_hook(
        lambda layer, given, out: kept.append(out.clone() if isinstance(out, Tensor) else out)
    ):
        first = call(0, x[0], training=False)
    if not isinstance(kept[0], Tensor):
        return False
    with layer.register_forward_hook(lambda layer, given, out: kept[0]):
        second = call(1, x[1], training=False)
    return same(second.outputs(), first.outputs(), tolerance)
