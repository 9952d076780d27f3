"""Files of the MNIST family (IDX), read without believing what their headers claim."""

import gzip
import math
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from coterie.data.archives import read_at_most, reading
from coterie.data.silo import Array
from coterie.errors import BadInput

LARGEST = 1 << 30  # bytes; EMNIST's largest file is 547 MB
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


def read_idx(path: Path) -> Array:
    """The uint8 array in an IDX file, plain or gzipped."""
    readable = reading(path, DAMAGED, "damaged gzip file", "fetch it again")
    with readable, gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return _array(file, path)  # type: ignore[arg-type]


def _array(file: IO[bytes], path: Path) -> Array:
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
        raise BadInput(f"{path}: not an IDX file of bytes; expected an MNIST-like file, fetch it again")
    dimensions = file.read(4 * magic[3])
    if len(dimensions) < 4 * magic[3]:
        raise BadInput(f"{path}: ends within its header; fetch it again")
    shape = tuple(int(n) for n in np.frombuffer(dimensions, ">u4"))
    claimed = math.prod(shape)
    if not 0 < claimed <= LARGEST:
        raise BadInput(f"{path}: its header claims {claimed} bytes of data, the limit is {LARGEST}; fetch it again")
    data = read_at_most(file, claimed + 1)
    if len(data) != claimed:
        found = len(data) if len(data) < claimed else "more"
        raise BadInput(f"{path}: its header claims {claimed} bytes of data {shape}, but {found} follow; fetch it again")
    return np.frombuffer(data, np.uint8).reshape(shape)
