"""Boosted trees as a module: the arrays of `data/own/trees.py`, evaluated."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.data.own.incumbent import ANY


class Trees(nn.Module):
    """Probabilities (n, C), or numbers (n, 1), for encoded rows x (n, ...)."""

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    output: Tensor
    base: Tensor
    places: Tensor

    def __init__(self, arrays: Mapping[str, Tensor], classes: int) -> None:
        super().__init__()
        for name, array in arrays.items():
            self.register_buffer(name, array)
        self.steps, self.classes = int(arrays["depth"][0]), classes

    def forward(self, x: Tensor) -> Tensor:
        """Every row down every tree, all at once."""
        flat = x.flatten(1).double()
        trees = torch.arange(len(self.feature), device=x.device)
        node = torch.zeros_like(flat[:, :1], dtype=torch.int64).expand(-1, len(trees))
        for _ in range(self.steps):
            goes_left = flat.gather(1, self.feature[trees, node]) <= self.threshold[trees, node]
            node = torch.where(goes_left, self.left[trees, node], self.right[trees, node])
        sums = self.base + self.value[trees, node] @ F.one_hot(self.output, len(self.base)).double()  # (n, outputs)
        if not self.classes:
            return sums.to(x.dtype)
        chances = torch.cat([torch.zeros_like(sums), sums], 1) if sums.shape[1] == 1 else sums
        found = chances.softmax(1) @ F.one_hot(self.places, self.classes).double()
        return ((1 - ANY) * found + ANY / self.classes).to(x.dtype)
