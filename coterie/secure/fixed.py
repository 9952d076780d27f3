"""Real numbers as whole ones modulo 2^64, which masks can be added to and taken from without a trace.

A model's number w is round(w 2^b), a server's weight a is round(a 2^24); int64 wraps around as it has to. What is below
`limit` in size, mixed with weights that sum to 2 at most, never reaches 2^62: what does was opened with a wrong mask.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.errors import BadInput
from coterie.secure.masks import cipher

WEIGHT_BITS = 24  # a float32 has as many
MOST_WEIGHT = 2.0  # that the sizes of weights may sum to: of a mean it is 1
PIECE = 1 << 16  # numbers at a time: they stay in a processor's cache


@dataclass(frozen=True)
class FixedPoint:
    """How a model's numbers are written: the largest that may be, and so the step between two."""

    limit: float  # a power of two

    @property
    def bits(self) -> int:
        """Of the fraction; with those of the weights, of the limit and of their sum there are 62."""
        return 62 - WEIGHT_BITS - int(math.log2(MOST_WEIGHT)) - math.ceil(math.log2(self.limit))

    def fits(self, values: Tensor) -> Tensor:
        """(k,) whether all numbers of each row are finite and within the limit."""
        return (values.abs() <= self.limit).flatten(1).all(1)  # NaN is not

    def encode(self, values: Tensor) -> Tensor:
        """Numbers within the limit as whole ones."""
        return (values.double() * 2.0**self.bits).round_().long()

    def decode(self, total: Tensor, dtype: torch.dtype) -> Tensor:
        """What weighted sums of encoded numbers stand for; refused if no honest sum can be so large."""
        values = total.double() * 2.0 ** -(self.bits + WEIGHT_BITS)
        if values.numel() and float(values.abs().max()) > MOST_WEIGHT * self.limit * (1 + 2.0**-WEIGHT_BITS):
            raise BadInput(
                "what the server sent does not open: this silo's group key is not that of the others, or it was changed"
            )
        return values.to(dtype)


def as_weights(weights: Tensor) -> Tensor:
    """Weights (..., n) of a sum as whole numbers; refused where their sizes sum to more than a sum may have."""
    if weights.numel() and float(weights.abs().sum(-1).max()) > MOST_WEIGHT:
        raise BadInput(f"the server's weights sum to more than {MOST_WEIGHT:g} in size; the sum might wrap around")
    return (weights.double() * 2.0**WEIGHT_BITS).round().long()


def combined(weights: Tensor, encoded: Tensor) -> Tensor:
    """Σ_j weights_j encoded_j modulo 2^64, for weights (..., n) and encoded (n, s)."""
    flat, size = weights.reshape(math.prod(weights.shape[:-1]), len(encoded)), encoded.shape[1]
    total = encoded.new_zeros(len(flat), size)
    if encoded.device.type == "cpu":  # no library multiplies such matrices fast; NumPy does it three times as fast
        a, b, out = flat.numpy(), encoded.numpy(), total.numpy()
        for piece in (slice(first, first + PIECE) for first in range(0, size, PIECE)):
            np.einsum("ij,jk->ik", a, b[:, piece], out=out[:, piece])
    else:  # and GPUs none at all
        for weight, row in zip(flat.T, encoded, strict=True):
            total += weight[:, None] * row
    return total.reshape(*weights.shape[:-1], size)


def add_masks(total: Tensor, keys: Sequence[bytes], weights: Tensor) -> None:
    """Add Σ_j weights_j mask_j modulo 2^64 to whole numbers (..., s) in place; weights (..., n) are one for each key.

    A mask is s whole numbers by its key, each as likely as any other.
    """
    ciphers, zeros = [cipher(key) for key in keys], memoryview(bytes(8 * PIECE))
    made = np.empty((len(keys), 8 * PIECE + 16), dtype=np.uint8)  # a cipher wants some room behind
    for piece in total.split(PIECE, -1):  # type: ignore[no-untyped-call]
        size = 8 * piece.shape[-1]
        for each, row in zip(ciphers, made, strict=True):
            each.update_into(zeros[:size], row.data)
        piece += combined(weights, torch.from_numpy(made[:, :size].view("<i8")).to(total.device))
