"""NumPy archives, checked before anything is allocated: no pickle, no claims beyond what the file can hold."""

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from coterie.data.silo import Array
from coterie.errors import BadInput

LARGEST = 8 << 30  # bytes, all arrays together
DEFLATE = 1032  # deflate cannot compress further than this


def read_npz(path: Path) -> dict[str, Array]:
    """Every array of the archive by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            _check_sizes(entries, path)
            for entry in entries:
                with archive.open(entry) as file:
                    _check_header(file, entry.file_size, f"{path} {entry.filename}")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise BadInput(f"{path}: damaged or not a NumPy .npz archive ({_line(error)}); write it again") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror or error}); check the path") from None


def read_npy(path: Path) -> Array:
    """The array in a single .npy file."""
    try:
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size, str(path))
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise BadInput(f"{path}: damaged or not a NumPy .npy file ({_line(error)}); write it again") from None


def _check_sizes(entries: list[zipfile.ZipInfo], path: Path) -> None:
    if not entries:
        raise BadInput(f"{path}: holds no arrays; save it with numpy.savez_compressed")
    for entry in entries:
        if entry.compress_size > path.stat().st_size or entry.file_size > DEFLATE * (entry.compress_size + 1):
            raise BadInput(
                f"{path} {entry.filename}: claims {entry.file_size} bytes, more than the file can hold; write it again"
            )
    total = sum(entry.file_size for entry in entries)
    if total > LARGEST:
        raise BadInput(f"{path}: unpacks to {total} bytes, more than the limit of {LARGEST}; give a smaller set")


def _check_header(file: IO[bytes], size: int, where: str) -> None:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise BadInput(f"{where}: .npy version {version} is not for plain numbers; save plain numbers instead")
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = reader(file)
    if dtype.hasobject:
        raise BadInput(f"{where}: holds Python objects (pickle); save plain numbers instead")
    claimed, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if any(n < 0 for n in shape) or claimed != held:
        raise BadInput(f"{where}: its header claims {claimed} bytes of data {shape}, but {held} follow; write it again")


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
