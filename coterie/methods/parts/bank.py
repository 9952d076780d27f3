"""Models held once, and rows that point into them: what silos hold of each other's models, without a copy per silo.

`picks` (k, n) says, for each of k silos and each of n models it may know, which row of `bank` that is (-1: none).
"""

import torch
from torch import Tensor


def mixture(bank: Tensor, picks: Tensor, weights: Tensor) -> Tensor:
    """Σ_j weights_ij bank[picks_ij], over the models that a row points at: (k, d)."""
    shares = weights.new_zeros(len(picks), len(bank) + 1).scatter_add(1, _column(bank, picks), weights)
    return shares[:, :-1] @ bank


def products(rows: Tensor, bank: Tensor, picks: Tensor) -> Tensor:
    """⟨rows_i, bank[picks_ij]⟩, 0 where a row points at no model: (k, n)."""
    known = rows @ bank.T
    return torch.cat([known, known.new_zeros(len(rows), 1)], 1).gather(1, _column(bank, picks))


def _column(bank: Tensor, picks: Tensor) -> Tensor:
    """Where a pick falls among the bank's models; those that point at none share a last column of their own."""
    return picks % (len(bank) + 1)
