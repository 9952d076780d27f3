"""Secret sketches: who is like whom, and nothing else.

s_j = R w_j / √k for a k × d matrix R of independent standard normal numbers that the server does not know. The k rows
of (s_1 … s_m) are then independent draws of N(0, G/k), G the Gram matrix of the w_j: sketches depend on the models
through G alone. Inner products of sketches are those of the models up to a relative √(2/k).

k · d normal numbers are dear, so models of more than `WIDTH` columns are folded to that many first, by signs and shifts
that the server does not know either (a count sketch: Charikar, Chen and Farach-Colton, ICALP 2002). G is then the Gram
matrix of the folded models, which is that of the models up to a relative √(2/WIDTH). R is made in blocks, never held.
"""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from coterie.secure.masks import stream, subkey

WIDTH = 1 << 14  # columns that R has, at most
BLOCK = 1 << 10  # columns at a time


def sketch(key: bytes, rows: Tensor, size: int) -> Tensor:
    """R rows / √k: (n, d) -> (n, k), in float64; the same key is the same R."""
    total = torch.zeros(len(rows), size, dtype=torch.float64, device=rows.device)
    for number, block in enumerate(folded(key, rows).split(BLOCK, 1)):  # type: ignore[no-untyped-call]
        part = normal(subkey(key, "sketch", number), block.shape[1] * size).reshape(block.shape[1], size)
        total += (block @ part.to(block)).double()
    return total / math.sqrt(size)


def folded(key: bytes, rows: Tensor) -> Tensor:
    """Rows of at most `WIDTH` columns: (n, d) -> (n, w), each block of them with random signs, turned at random, added.

    Two columns of one block never meet and two of different blocks meet with probability 1/w, so inner products
    keep their mean, and their variance is at most 2/w of the squared lengths.
    """
    if rows.shape[1] <= WIDTH:
        return rows
    made = rows.new_zeros(len(rows), WIDTH)
    for number, block in enumerate(rows.split(WIDTH, 1)):  # type: ignore[no-untyped-call]
        drawn, size = stream(subkey(key, "fold", number), WIDTH // 8 + 4), block.shape[1]
        signs = torch.from_numpy(np.unpackbits(drawn[:-4], count=size)).to(rows).mul_(2).sub_(1)
        first = WIDTH - int.from_bytes(drawn[-4:].tobytes(), "little") % WIDTH  # which is turned to column 0
        signed = block * signs
        made[:, WIDTH - first :][:, :size] += signed[:, :first]
        made[:, : max(size - first, 0)] += signed[:, first:]
    return made


def normal(key: bytes, size: int) -> Tensor:
    """Standard normal numbers (size,) in float32: 16 bits of a secret stream each, as one of 65,536 quantiles."""
    return torch.from_numpy(_quantiles().take(stream(key, 2 * size).view("<u2"), mode="clip"))  # no index is beyond


@cache
def _quantiles() -> np.ndarray:
    """The middles of 65,536 equally likely intervals, stretched to a variance of one."""
    from scipy.special import ndtri

    middles = ndtri((np.arange(1 << 16) + 0.5) / (1 << 16))
    made: np.ndarray = (middles / middles.std()).astype(np.float32)
    return made
