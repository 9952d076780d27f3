"""Secret sketches: who is like whom, and nothing else.

s_j = R w_j / √k for a k × d matrix R of independent standard normal numbers that the server does not know. The k rows
of (s_1 … s_m) are then independent draws of N(0, G/k), G the Gram matrix of the w_j: sketches depend on the models
through G alone. Inner products of sketches are those of the models up to a relative √(2/k). R is made in blocks and
never held.
"""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from coterie.secure.masks import stream, subkey

BLOCK = 1 << 12  # columns at a time


def sketch(key: bytes, rows: Tensor, size: int) -> Tensor:
    """R rows / √k: (n, d) -> (n, k), in float64; the same key is the same R."""
    total = torch.zeros(len(rows), size, dtype=torch.float64, device=rows.device)
    for number, block in enumerate(rows.split(BLOCK, 1)):  # type: ignore[no-untyped-call]
        part = normal(subkey(key, "sketch", number), block.shape[1] * size).reshape(block.shape[1], size)
        total += (block @ part.to(block)).double()
    return total / math.sqrt(size)


def normal(key: bytes, size: int) -> Tensor:
    """Standard normal numbers (size,) in float32: 16 bits of a secret stream each, as one of 65,536 quantiles."""
    return torch.from_numpy(_quantiles().take(stream(key, 2 * size).view("<u2")))


@cache
def _quantiles() -> np.ndarray:
    """The middles of 65,536 equally likely intervals, stretched to a variance of one."""
    from scipy.special import ndtri

    middles = ndtri((np.arange(1 << 16) + 0.5) / (1 << 16))
    made: np.ndarray = (middles / middles.std()).astype(np.float32)
    return made
