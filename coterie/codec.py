"""Records as bytes: safetensors, so that nothing read from a disk or a wire can run."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from coterie.errors import BadInput
from coterie.wire import Record, Up

R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    """The bytes of a record."""
    return safetensors.torch.save(storable(record.tensors()))


def storable(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them."""
    whole = {name: t.detach().cpu().contiguous() for name, t in named.items()}
    # Tensors that share memory are refused by safetensors: all but the first become copies.
    seen: set[int] = set()
    for name, tensor in whole.items():
        memory = tensor.untyped_storage().data_ptr()
        if memory in seen:
            whole[name] = tensor.clone()
        seen.add(memory)
    return whole


def save_tensors(named: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Tensors as a file; what the disk refuses is an OSError, as of any other file."""
    try:
        safetensors.torch.save_file(dict(named), path, dict(metadata))
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None


def encode_up(up: Up) -> bytes:
    """The bytes that leave a silo: of an `Up`, and of nothing else."""
    if not isinstance(up, Up):
        raise TypeError(f"only an Up may leave a silo, not a {type(up).__name__}")
    return encode(up)


def decode(kind: type[R], blob: bytes) -> R:
    """A record of the given type; bytes that are not exactly its fields are refused."""
    try:
        named: dict[str, Tensor] = safetensors.torch.load(blob)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"a {kind.__name__} arrived damaged: {error}") from None
    try:
        return kind(**named)
    except TypeError:
        raise BadInput(
            f"a {kind.__name__} arrived with the wrong fields: {', '.join(sorted(named)) or 'none'}"
        ) from None
