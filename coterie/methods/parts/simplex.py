"""Weights that are none below zero and sum to one."""

import torch
from torch import Tensor


def nearest_in_simplex(rows: Tensor) -> Tensor:
    """The points of the simplex nearest to rows (k, n), exactly: max(0, v − θ) with the θ for which it sums to one.

    Held, Wolfe and Crowder, "Validation of Subgradient Optimization", 1974: the largest values are kept, as many as
    stay above their θ. A value of −∞ weighs nothing.
    """
    v = rows - rows.amax(1, keepdim=True)  # the same for any shift; so no digits are lost where values are large
    largest = v.sort(1, descending=True).values
    counts = torch.arange(1, v.shape[1] + 1, dtype=v.dtype, device=v.device)
    theta = (largest.cumsum(1) - 1) / counts
    kept = (largest > theta).sum(1, keepdim=True)
    return (v - theta.gather(1, kept - 1)).clamp_min(0)
