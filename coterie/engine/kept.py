"""What a frozen prefix gives for each sample, computed once: training a head then costs what a head costs."""

import os
import shutil
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from coterie.data import mapped
from coterie.engine.rows import Model
from coterie.engine.store import SPLITS, Store
from coterie.errors import BadInput

AT_ONCE = 256  # samples
SHARE = 0.25  # of the memory: more goes into a file that is mapped into it
DISK = 0.5  # of the disk that is free


def keep_features(model: Model, store: Store, wanted: bool | Literal["auto"]) -> tuple[Model, Store]:
    """The model of what its frozen prefix gives and the silos with that for samples; both as they are without one."""
    if wanted is False or (wanted == "auto" and not model.frozen):
        return model, store
    model.examine(store["train"].x)
    if model.prefix is None or model.rest is None:
        if wanted == "auto":
            return model, store
        raise BadInput(
            "[train] keep_features: nothing that is frozen comes before all that trains, or the model cannot be split "
            'there for sure; take "auto"'
        )
    if model not in store.kept:
        like = model.prefixed(store["train"].x[:1])
        sample = prod(like.shape[1:]) * like.dtype.itemsize
        place = _place(sum(len(store[split].x) for split in SPLITS) * sample, model.device)
        if place is None:
            if wanted == "auto":
                return model, store
            raise BadInput("[train] keep_features: neither memory nor disk has room for them; take false")
        samples = {split: _through(model, store[split].x, like, place) for split in SPLITS}
        store.kept[model] = store.with_samples(samples)
    return model.rest, store.kept[model]


Place = Callable[[tuple[int, ...], torch.dtype], Tensor]  # room for a tensor


def _through(model: Model, x: Tensor, like: Tensor, place: Place) -> Tensor:
    """What the prefix gives for samples x (N, ...)."""
    made = place((len(x), *like.shape[1:]), like.dtype)
    for first in range(0, len(x), AT_ONCE):
        made[first : first + AT_ONCE] = model.prefixed(x[first : first + AT_ONCE])
    return made


def _place(size: int, device: torch.device) -> Place | None:
    """Where so many bytes have room: on the device, or in a file; None: nowhere."""
    if size <= SHARE * _memory(device):
        return lambda shape, dtype: torch.empty(shape, dtype=dtype, device=device)
    return _in_file if size <= DISK * shutil.disk_usage(tempfile.gettempdir()).free else None


def _memory(device: torch.device) -> int:
    """Bytes that a GPU has free, or that a machine has."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else mapped.memory()


def _in_file(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor in a file without a name, which is gone with the tensor."""
    handle, name = tempfile.mkstemp(prefix="coterie-")
    try:
        mapped.reserve(handle, prod(shape) * dtype.itemsize, name)
        return torch.from_file(name, shared=True, size=prod(shape), dtype=dtype).view(shape)
    finally:
        os.close(handle)
        Path(name).unlink()
