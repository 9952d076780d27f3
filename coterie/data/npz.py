"""NumPy archives, checked before anything is allocated: no pickle, no claims beyond what the file can hold."""

import math
import zipfile
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from coterie.data import archives
from coterie.data.archives import PACKED, reading
from coterie.data.silo import Array
from coterie.errors import BadInput

LARGEST = 8 << 30  # bytes, all arrays together
MOST_EMPTY = 1 << 20  # along an axis of an array that holds nothing
DAMAGED = (*archives.DAMAGED, RuntimeError, TypeError, SyntaxError, TokenError)
DEFLATE = 1032  # deflate cannot compress further than this


def read_npz(path: Path) -> dict[str, Array]:
    """Every array of the archive by name; whatever else it holds is left alone."""
    readable = reading(path, DAMAGED, "damaged or not a NumPy .npz archive", "write it again")
    with readable, zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        check_sizes(entries, path)
        return {entry.filename.removesuffix(".npy"): _member(archive, entry, path) for entry in entries}


def read_npy(path: Path) -> Array:
    """The array in a single .npy file."""
    with reading(path, DAMAGED, "damaged or not a NumPy .npy file", "write it again"), path.open("rb") as file:
        return _array(file, path.stat().st_size, str(path))


def check_sizes(entries: list[zipfile.ZipInfo], path: Path) -> None:
    """Refuse an archive whose arrays claim more than it can hold."""
    if not entries:
        raise BadInput(f"{path}: holds no arrays; save it with numpy.savez_compressed")
    if len({entry.filename for entry in entries}) < len(entries):
        raise BadInput(f"{path}: holds two arrays of one name; write it again")
    for entry in entries:
        if entry.compress_type not in PACKED or entry.file_size > DEFLATE * (entry.compress_size + 1):
            raise BadInput(
                f"{path} {entry.filename}: claims {entry.file_size} bytes, more than the file can hold; write it again"
            )
    packed, total = (sum(getattr(entry, size) for entry in entries) for size in ("compress_size", "file_size"))
    if packed > path.stat().st_size:
        raise BadInput(f"{path}: its arrays claim {packed} bytes, more than the file has; write it again")
    if total > LARGEST:
        raise BadInput(f"{path}: unpacks to {total} bytes, more than the limit of {LARGEST}; give a smaller set")


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Array:
    with archive.open(entry) as file:
        return _array(file, entry.file_size, f"{path} {entry.filename}")


def _array(file: IO[bytes], size: int, where: str) -> Array:
    shape, dtype = described(file, where)
    if dtype.hasobject:
        raise BadInput(f"{where}: holds Python objects (pickle); save plain numbers instead")
    claimed, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    # What holds no number costs no bytes, so a file could claim any number of it.
    hollow = dtype.itemsize == 0 or (claimed == 0 and max(shape) > MOST_EMPTY)
    if hollow or any(n < 0 for n in shape) or claimed != held:
        raise BadInput(f"{where}: its header claims {claimed} bytes of data {shape}, but {held} follow; write it again")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def described(file: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and type that an array's header claims; the file is read up to what follows."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise BadInput(f"{where}: .npy version {version} is not for plain numbers; save plain numbers instead")
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = reader(file)
    return shape, dtype
