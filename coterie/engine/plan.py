"""The ragged schedule of local training: which samples each silo takes at each step, and who is still training."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.keys import generator


class BatchPlan:
    """Steps for k silos whose numbers of steps fall from row to row, so that those still training are a prefix."""

    def __init__(
        self,
        names: Sequence[str],
        counts: np.ndarray,
        batch: int,
        epochs: int,
        seed: int,
        *key: object,
        whole: bool = False,
    ) -> None:
        self.batch, self.names, self.seed, self.key = batch, names, seed, key
        # `whole`: an epoch leaves out the samples of a last, partial batch, unless there is no other
        per_epoch = np.maximum(counts // batch, 1) if whole else -(-counts // batch)
        self.steps = per_epoch * epochs
        if (np.diff(self.steps) > 0).any():
            raise ValueError("rows must come with the longest training first")
        total = int(self.steps.max(initial=0))
        # (k, steps, batch): a sample's position in its silo's training set; -1 fills a last, partial batch
        self.order = np.full((len(names), total, batch), -1, dtype=np.int64)
        for row, (name, n) in enumerate(zip(names, counts, strict=True)):
            mine = self.order[row, : self.steps[row]].reshape(epochs, -1)  # a view: the rows are whole
            shuffled = generator(seed, *key, name).permuted(np.tile(np.arange(n), (epochs, 1)), axis=1)
            mine[:, :n] = shuffled[:, : mine.shape[1]]

    def noise(self) -> np.ndarray:
        """(k, steps): what dropout's masks are keyed by."""
        draws = [generator(self.seed, *self.key, "noise", name) for name in self.names]
        return np.stack([draw.integers(2**62, size=self.order.shape[1]) for draw in draws])

    def shorten(self, most: int) -> None:
        """Keep at most so many steps of the longest row, and of the others in proportion."""
        self.steps = -(-self.steps * most // max(most, int(self.steps.max(initial=0))))

    def active(self, step: int) -> int:
        """How many rows, counted from the first, still train at this step."""
        return int((self.steps > step).sum())

    def width(self, step: int) -> int:
        """How many places the largest batch of a step needs."""
        return self.batch

    def alike(self, step: int) -> Iterator[tuple[Tensor, int]]:
        """The active rows in groups whose batches have the same size, and that size, for models that forbid padding."""
        filled = (self.order[: self.active(step), step] >= 0).sum(1)
        for size in np.unique(filled)[::-1]:
            yield torch.from_numpy(np.flatnonzero(filled == size)), int(size)
