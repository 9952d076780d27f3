"""Samples that memory should not hold: in files that are mapped into it, of which the system reads what is asked for.

What a run reads stays in memory up to a limit, silo by silo as it comes; all that comes after it goes into files in the
cache folder. They have no name and are gone with the process. Results are the same bits either way.
"""

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from coterie.data import cache
from coterie.errors import BadInput

Array = NDArray[Any]
SHARE = 0.25  # of the machine's memory, where no limit is given
LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container
DISK = 0.9  # of the disk that is free may be taken


class _Shelf:
    """How much memory may yet be taken."""

    def __init__(self, left: float) -> None:
        self.left = left

    def takes(self, size: int) -> bool:
        """Whether so many bytes still fit; if so they are taken."""
        fits = size <= self.left
        self.left -= size if fits else 0
        return fits


_shelf: ContextVar[_Shelf | None] = ContextVar("_shelf", default=None)


@contextmanager
def holding(gigabytes: float | Literal["auto"]) -> Iterator[None]:
    """Within this, so much of what is read stays in memory; auto: a quarter of the machine's. An outer one holds."""
    if _shelf.get() is not None or os.name == "nt":  # on Windows the file of what is mapped keeps its name
        yield
        return
    before = _shelf.set(_Shelf(SHARE * memory() if gigabytes == "auto" else gigabytes * 1e9))
    try:
        yield
    finally:
        _shelf.reset(before)


def room(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An array to be filled: in memory where it fits, else in a file."""
    shelf, size = _shelf.get(), prod(shape) * np.dtype(dtype).itemsize
    return np.empty(shape, dtype) if shelf is None or shelf.takes(size) or not size else _in_file(shape, dtype, size)


def end_to_end(arrays: Sequence[Array]) -> Array:
    """Arrays one after another, in memory or in a file."""
    kind = np.result_type(*(each.dtype for each in arrays))
    made = room((sum(map(len, arrays)), *arrays[0].shape[1:]), kind)
    return np.concatenate(arrays, out=made)


def kept(values: Array) -> Array:
    """The array itself where it fits into memory, else a copy in a file."""
    shelf = _shelf.get()
    if shelf is None or not values.size or is_mapped(values) or shelf.takes(values.nbytes):
        return values
    made = _in_file(values.shape, values.dtype, values.nbytes)
    made[:] = values
    return made


def kept_columns(columns: Mapping[str, Array]) -> dict[str, Array]:
    """The same of a table's columns (n,): those of one type together in one file, for a system maps only so many."""
    made, shelf = dict(columns), _shelf.get()
    for kind in {column.dtype for column in columns.values()}:
        alike = [name for name, column in columns.items() if column.dtype == kind and not is_mapped(column)]
        size = sum(columns[name].nbytes for name in alike)
        if shelf is not None and size and not shelf.takes(size):
            for name, place in zip(alike, _in_file((len(alike), len(columns[alike[0]])), kind, size), strict=True):
                place[:] = columns[name]
                made[name] = place
    return made


def is_mapped(values: Array) -> bool:
    """Whether it lies in a file."""
    base: Any = values
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def memory() -> int:
    """Bytes that the machine has, or a container may take."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with suppress(OSError, ValueError):  # no container, or one without a limit
            whole = min(whole, int(LIMIT.read_text()))
        return whole
    except (ValueError, OSError, AttributeError):  # a system that does not count them
        return 1 << 33


def _in_file(shape: tuple[int, ...], dtype: DTypeLike, size: int) -> Array:
    folder = cache.root() / "samples"
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if size > DISK * free:
        raise BadInput(
            f"{folder}: {size / 1e9:.3g} GB of samples and {free / 1e9:.3g} GB of disk that is free; free some, name "
            "another folder in COTERIE_DATA, or give --set engine.in_memory a larger number"
        )
    handle, name = tempfile.mkstemp(dir=folder)
    try:
        reserve(handle, size, str(folder))
        return np.asarray(np.memmap(name, dtype, "r+" if Path(name).stat().st_size else "w+", shape=shape))
    finally:
        os.close(handle)
        Path(name).unlink()


def reserve(handle: int, size: int, where: str) -> None:
    """Take so many bytes of the disk for a file: on one that is full, a write to what is mapped ends the process."""
    try:
        os.posix_fallocate(handle, 0, size)
    except AttributeError:  # a system that cannot
        return
    except OSError as error:
        raise BadInput(f"{where}: {size / 1e9:.3g} GB do not fit ({error.strerror}); free some of the disk") from None
