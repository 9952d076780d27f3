"""Dropout whose mask depends on a key alone, so that a silo's draws do not depend on which rows share its call."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_WHOLE = {F.dropout}
_CHANNELS = {F.dropout1d, F.dropout2d, F.dropout3d}
_FACTOR, _INVERSE = -7046029254386353131, -1018231460777725123  # their product is 1 modulo 2^64


def uniform(key: Tensor, size: int) -> Tensor:
    """`size` numbers in [0, 1) from an integer key: splitmix64 of key and position (arithmetic wraps at 64 bits).

    Of keys (k, 1), k such sequences.
    """
    # position · factor + key, multiplied last: compiled, a position is a number of 32 bits, which the factor exceeds.
    z = (torch.arange(1, size + 1, device=key.device) + key * _INVERSE) * _FACTOR
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return ((z >> 31) & ((1 << 24) - 1)) * 2.0**-24


class KeyedDropout(TorchFunctionMode):
    """Inside it, the functional dropouts that a module calls draw from `key` and their order of call."""

    def __init__(self, key: Tensor, active: bool) -> None:
        super().__init__()
        self.key, self.active, self.calls = key, active, 0

    def __enter__(self) -> Any:
        return super().__enter__() if self.active else self  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        if self.active:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function not in _WHOLE and function not in _CHANNELS:
            return function(*args, **kwargs)
        return self._dropout(function in _CHANNELS, *args, **kwargs)

    def _dropout(
        self, by_channel: bool, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        self.calls += 1
        shape = _mask(input, by_channel)
        keep = uniform(self.key + self.calls, math.prod(shape)).reshape(shape) >= p
        return input.mul_(keep).div_(_kept(p)) if inplace else input * keep / _kept(p)


def row_dropout(x: Tensor, k: int, keys: Tensor, call: int, p: float, by_channel: bool) -> Tensor:
    """The same for k rows at once: x (k·b, ...), each row's mask from its own key of keys (k,)."""
    shape = _mask(x, by_channel)
    keep = uniform(keys[:, None] + call, math.prod(shape) // k).reshape(shape) >= p
    return x * keep / _kept(p)


def _kept(p: float) -> float:
    """The share that is left; of nothing it does not matter which."""
    return 1 - p or 1.0


def _mask(x: Tensor, by_channel: bool) -> tuple[int, ...]:
    """A channel is dropped whole: the mask has the batch and channel axes, and ones for the rest."""
    return (*x.shape[:2], *[1] * (x.ndim - 2)) if by_channel else tuple(x.shape)
