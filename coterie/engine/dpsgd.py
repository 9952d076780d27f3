"""DP-SGD: gradients that hide every single sample of a silo.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1. A batch is a Poisson sample: each of the
n samples is in it by chance, with probability q. Every sample's gradient is scaled back to a length of C at most, their
sum gets noise of deviation σ C in every column, and is divided by the expected size of a batch, q n.

A deployed silo draws batches and noise from the operating system's randomness, afresh for each loop: who could repeat
the draws would know which samples a batch has, or take the noise off. A simulation's go by the seed.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.engine.plan import BatchPlan
from coterie.engine.rows import Model
from coterie.keys import gaussian, generator, uniform

NUMBERS_AT_ONCE = 1 << 25  # of samples' gradients that are held


def sampling(samples: int, batch: int, epochs: int) -> tuple[float, int]:
    """q, the chance of a sample to be in a batch, and how many batches there are: as many as without chance."""
    return min(1.0, batch / samples), -(-samples // batch) * epochs


@dataclass(frozen=True)
class DPSGD:
    """How gradients are clipped and noised."""

    clip: float  # C, the longest gradient of a sample
    noise: Tensor  # (m,) σ of every silo in the store; the noise has the deviation σ C
    key: str = ""  # of a loop's draws
    secret: bool = False

    def keyed(self, secret: str, seed: int, purpose: str, round: int) -> "DPSGD":
        """The same for one loop; a silo with a secret has draws that nobody can repeat, itself included."""
        fresh = f",{secret},{secrets.token_hex(32)}" if secret else ""
        return replace(self, key=f"dpsgd,{seed},{purpose},{round}{fresh}", secret=bool(secret))

    def uniform(self, name: str, part: int, size: int) -> np.ndarray:
        """A silo's numbers between 0 and 1 for its batches."""
        return uniform(f"{self.key},batches,{part},{name}".encode(), size)

    def gaussian(self, name: str, step: int, size: int) -> np.ndarray:
        """A silo's noise of one step, of deviation 1."""
        if self.secret:
            return gaussian(f"{self.key},noise,{step},{name}".encode(), size)
        return generator(0, self.key, "noise", step, name).standard_normal(size)  # many times faster

    def clipped_sum(self, model: Model, models: Tensor, x: Tensor, y: Tensor, mask: Tensor, keys: Tensor) -> Tensor:
        """Σ of the samples' clipped gradients (k, c, d) at c models of each silo; these are clipped as one vector.

        Samples x and y (k, b, ...), of which some are `mask` (k, b): each is a row of its own.
        """
        k, c, d = models.shape
        total = torch.zeros_like(models)
        at_once = max(1, NUMBERS_AT_ONCE // (k * c * d))
        for first in range(0, mask.shape[1], at_once):
            part = slice(first, first + at_once)
            n = mask[:, part].shape[1]
            rows = models[:, :, None].expand(k, c, n, d).reshape(-1, d)
            own, labels = (t[:, None, part].expand(k, c, n, *t.shape[2:]).reshape(-1, 1, *t.shape[2:]) for t in (x, y))
            places = torch.arange(first, first + n, device=keys.device)
            masks = (keys[:, None, None] + places).expand(k, c, n).reshape(-1)  # dropout's: each sample has its own
            grads, *_ = model.gradient(rows, own, labels, rows.new_ones(len(rows), 1), masks)
            # A number that is none would pass the clip: it counts as no gradient.
            grads = grads.nan_to_num(0.0, 0.0, 0.0).reshape(k, c, n, d)
            lengths = torch.linalg.vector_norm(grads, dim=(1, 3))  # (k, n)
            scale = mask[:, part] * (self.clip / lengths.clamp_min(self.clip))
            total += torch.einsum("kn,kcnd->kcd", scale.to(grads.dtype), grads)
        return total

    def noise_of(self, model: Model, names: Sequence[str], silos: Tensor, c: int, step: int) -> Tensor:
        """The noise of one step (k, c, d), 0 in the columns that hold no weights."""
        weights = model.layout.places({block.name for block in model.layout.parameters}).to(model.device)
        width = int(weights.sum())
        drawn = np.stack([self.gaussian(name, step, c * width).reshape(c, width) for name in names])
        made = torch.zeros(len(names), c, model.width, dtype=model.dtype, device=model.device)
        deviation = self.clip * self.noise[silos].to(made)
        made[:, :, weights] = deviation[:, None, None] * torch.from_numpy(drawn).to(made)
        return made


class PoissonPlan(BatchPlan):
    """The same number of steps as without chance, but each sample is in a batch by chance."""

    def __init__(
        self, names: Sequence[str], counts: np.ndarray, batch: int, epochs: int, dpsgd: DPSGD, seed: int, *key: object
    ) -> None:
        self.names, self.seed, self.key = names, seed, key
        how = [sampling(int(n), batch, epochs) for n in counts]
        self.steps = np.array([steps for _, steps in how])
        picked = [
            np.divmod(_picked(dpsgd, name, q, steps * int(n)), n)  # the step of each, and its position in the silo
            for name, n, (q, steps) in zip(names, counts, how, strict=True)
        ]
        sizes = [np.bincount(step, minlength=steps) for (step, _), (_, steps) in zip(picked, how, strict=True)]
        self.batch = max(1, *(int(size.max(initial=0)) for size in sizes))
        self.order = np.full((len(counts), int(self.steps.max(initial=0)), self.batch), -1, dtype=np.int64)
        for row, ((step, sample), size) in enumerate(zip(picked, sizes, strict=True)):
            place = np.arange(len(step)) - np.repeat(np.cumsum(size) - size, size)
            self.order[row, step, place] = sample

    def width(self, step: int) -> int:
        return max(1, int((self.order[: self.active(step), step] >= 0).sum(1).max()))


def _picked(dpsgd: DPSGD, name: str, q: float, total: int) -> np.ndarray:
    """Which of so many numbers are picked, each with probability q: the gaps between those are geometric."""
    if q == 1:
        return np.arange(total)
    parts, last = list[np.ndarray](), -1
    while last < total:
        size = int(q * (total - last)) + 64
        gaps = np.floor(np.log(dpsgd.uniform(name, len(parts), size)) / np.log1p(-q)).astype(np.int64) + 1
        parts.append(last + np.cumsum(gaps))
        last = int(parts[-1][-1])
    picked = np.concatenate(parts)
    return picked[picked < total]
