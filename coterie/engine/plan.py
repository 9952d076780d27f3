"""The ragged schedule of local training: which samples each silo takes at each step, and who is still training."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.keys import generator


class Plan:
    """Steps for k silos whose numbers of steps fall from row to row, so that those still training are a prefix."""

    def __init__(
        self, names: Sequence[str], counts: np.ndarray, batch: int, epochs: int, seed: int, *key: object
    ) -> None:
        self.batch = batch
        per_epoch = -(-counts // batch)
        self.steps = per_epoch * epochs
        if (np.diff(self.steps) > 0).any():
            raise ValueError("rows must come with the longest training first")
        total = int(self.steps.max(initial=0))
        # (k, steps, batch): a sample's position in its silo's training set; -1 fills a last, partial batch
        self.order = np.full((len(names), total, batch), -1, dtype=np.int64)
        self.noise = np.zeros((len(names), total), dtype=np.int64)
        for row, (name, n) in enumerate(zip(names, counts, strict=True)):
            draw = generator(seed, *key, name)
            epochs_of = np.full((epochs, per_epoch[row] * batch), -1, dtype=np.int64)
            epochs_of[:, :n] = draw.permuted(np.tile(np.arange(n), (epochs, 1)), axis=1)
            self.order[row, : self.steps[row]] = epochs_of.reshape(-1, batch)
            self.noise[row, : self.steps[row]] = draw.integers(2**62, size=self.steps[row])

    def active(self, step: int) -> int:
        """How many rows, counted from the first, still train at this step."""
        return int((self.steps > step).sum())

    def alike(self, step: int) -> Iterator[Tensor]:
        """The active rows in groups whose batches have the same number of samples, for models that forbid padding."""
        filled = (self.order[: self.active(step), step] >= 0).sum(1)
        for size in np.unique(filled)[::-1]:
            yield torch.from_numpy(np.flatnonzero(filled == size))
