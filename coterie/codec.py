"""Records as bytes: safetensors, so that nothing read from a disk or a wire can run."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from coterie.errors import BadInput
from coterie.wire import Record, Up, described, held

R = TypeVar("R", bound=Record)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


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
        safetensors.torch.save_file(storable(named), path, dict(metadata))
        _order(path)
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None


def _order(path: Path) -> None:
    """Order the header of a file by the alphabet: safetensors leaves it to chance, and one model has one checksum."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        made = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(made) <= size:  # other escapes would take other room
            file.seek(8)
            file.write(made.ljust(size))


def encode_up(up: Up) -> bytes:
    """The bytes that leave a silo: of an `Up`, and of nothing else, also not inside one."""
    _check_leaves(up)
    return encode(up)


def _check_leaves(record: object) -> None:
    if not isinstance(record, Up):
        raise TypeError(f"only an Up may leave a silo, not a {type(record).__name__}")
    for value in vars(record).values():
        if isinstance(value, Record):
            _check_leaves(value)


def decode(kind: type[R], blob: bytes, dtype: torch.dtype | None = None, **sizes: int) -> R:
    """A record of the given type; bytes that are not exactly its fields are refused.

    `dtype` is that of models, `sizes` are axes of the fields' shapes that the receiver knows (`rows`: the silos';
    `inner.d`: that of the record `inner` alone).
    """
    try:
        named: dict[str, Tensor] = safetensors.torch.load(blob)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"a {kind.__name__} arrived damaged: {error}") from None
    try:
        record = built(kind, named)
    except TypeError:
        raise BadInput(
            f"a {kind.__name__} arrived with the wrong fields: {', '.join(sorted(named))[:200] or 'none'}"
        ) from None
    check(record, dtype, **sizes)
    return record


def built(kind: R | type[R], named: Mapping[str, Tensor]) -> R:
    """A record of this type, or like this one, from the tensors that `tensors()` gave; a TypeError of any others."""
    made, rest = dict[str, Record](), dict(named)
    for name in held(kind):
        inner = {key: rest.pop(key) for key in named if key.startswith(f"{name}.")}
        like = held(kind)[name] if isinstance(kind, type) else getattr(kind, name)
        made[name] = built(like, {key.removeprefix(f"{name}."): tensor for key, tensor in inner.items()})
    whole = kind if isinstance(kind, type) else type(kind)
    return whole(**rest, **made)


def check(record: Record, dtype: torch.dtype | None = None, **sizes: int) -> None:
    """Refuse a record whose fields are not as its type declares: another kind of number, other axes, other sizes."""
    _check(record, f"a {type(record).__name__} arrived whose '", dtype, sizes)


def _check(record: Record, where: str, dtype: torch.dtype | None, known: Mapping[str, int]) -> None:
    sizes = dict(known)
    for name, about in described(record).items():
        tensor = getattr(record, name)
        if tensor is None:
            continue
        allowed = WHOLE if about.below else FLOATS if dtype is None or not about.has_columns else (dtype,)
        if tensor.dtype not in allowed:
            raise BadInput(f"{where}{name}' is of {str(tensor.dtype).removeprefix('torch.')}, which it never is")
        axes = [*["rows"] * (about.kind == "rows"), *about.axes]
        axes = [axis.rstrip("?") for axis in axes if len(axes) == tensor.ndim or not axis.endswith("?")]
        expected = [int(axis) if axis.isdigit() else sizes.get(axis) for axis in axes]
        found = list(tensor.shape)
        if len(found) != len(axes) or any(size not in (None, n) for size, n in zip(expected, found, strict=True)):
            text = " × ".join(axis if size is None else str(size) for axis, size in zip(axes, expected, strict=True))
            raise BadInput(f"{where}{name}' is {tuple(found)}, expected {text or 'one number'}")
        sizes |= dict(zip(axes, found, strict=True))  # the same axis name is the same size in all fields
    _check_pointers(record, where, sizes)
    for name in held(record):  # an axis name that only a record inside has is that record's own
        own = {axis.removeprefix(f"{name}."): size for axis, size in known.items() if axis.startswith(f"{name}.")}
        _check(getattr(record, name), f"{where}{name}.", dtype, {**known, **own})


def _check_pointers(record: Record, where: str, sizes: Mapping[str, int]) -> None:
    """Refuse whole numbers that point at what is not there; into a bank, -1 points at nothing and may."""
    for name, about in described(record).items():
        tensor = getattr(record, name)
        if tensor is not None and about.below in sizes and tensor.numel():
            lowest = -1 if about.below == "n" else 0
            if not lowest <= int(tensor.min()) <= int(tensor.max()) < sizes[about.below]:
                raise BadInput(f"{where}{name}' points at what is not there")
