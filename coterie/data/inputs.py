"""What the papers' authors do to pictures before a model sees them: another size, and numbers around zero."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import interpolate

from coterie.data.silo import Array, Pool
from coterie.errors import BadInput
from coterie.options import option

AT_ONCE = 4096  # pictures that are resized in one call


@dataclass(frozen=True)
class Inputs:
    """How inputs are fed: as they are, unless a study asks for more."""

    resize: int = option(0, "height and width that pictures are brought to; 0: as they are", low=0, high=4096)
    mean: tuple[float, ...] = option((), "what is subtracted from the inputs: one number, or one for each channel")
    deviation: tuple[float, ...] = option((), "what they are then divided by, likewise", above=0)


def prepared(pool: Pool, options: Inputs) -> Pool:
    """The pool with its inputs as a study wants them."""
    x = _resized(pool, options.resize) if options.resize else pool.x
    if options.mean:
        x = x - _by_channel(pool, "mean", options.mean)
    if options.deviation:
        x = x / _by_channel(pool, "deviation", options.deviation)
    return replace(pool, x=x)


def _resized(pool: Pool, size: int) -> Array:
    """Bilinear, averaging over what a smaller picture leaves out, as Pillow does it."""
    if pool.x.ndim != 4:
        raise BadInput(f"[data] resize: inputs of {pool.name} are not images; remove it")
    parts = [torch.from_numpy(pool.x[i : i + AT_ONCE]) for i in range(0, len(pool), AT_ONCE)]
    return torch.cat([interpolate(x, size=(size, size), mode="bilinear", antialias=True) for x in parts]).numpy()


def _by_channel(pool: Pool, name: str, values: tuple[float, ...]) -> Array:
    """Values (C, 1, ...) for inputs (N, C, ...)."""
    channels = pool.x.shape[1] if pool.x.ndim > 1 else 1
    if len(values) not in (1, channels):
        held = f"{channels} channel{'s' * (channels != 1)}"
        raise BadInput(f"[data] {name} has {len(values)} numbers and the inputs {held}; give one for each")
    return np.array(values, np.float32).reshape(-1, *[1] * (pool.x.ndim - 2))
