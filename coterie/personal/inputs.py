"""What to predict for: a table, arrays or pictures, with a name for each row."""

from pathlib import Path

import numpy as np
from pandas import DataFrame, Series

from coterie.data.archives import members
from coterie.data.arrays import pixels
from coterie.data.images import SUFFIXES, read_unlabelled
from coterie.data.npz import read_npz
from coterie.data.own.gather import TABLES
from coterie.data.own.tables import read_table
from coterie.data.silo import Array
from coterie.errors import BadInput


def read_samples(path: Path, resize: int = 0) -> tuple[Series, DataFrame | Array]:
    """The name of each row (its number, or its picture's file) and the rows; pictures are brought to `resize`."""
    kind = path.suffix.lower()
    if kind in TABLES:
        frame = read_table(path)
        return _numbered(len(frame)), frame
    if kind == ".npz":
        arrays = read_npz(path)
        if "x" not in arrays or arrays["x"].ndim == 0:
            raise BadInput(f"{path}: found arrays {', '.join(sorted(arrays))}; name the samples x")
        return _numbered(len(arrays["x"])), arrays["x"]
    if not path.is_dir() and kind not in SUFFIXES:
        raise BadInput(f"{path}: neither a .csv, .parquet or .npz file nor a folder of pictures; check the path")
    with members(path) as found:
        names, x = read_unlabelled(found, path, resize)
    return Series(names, name="file"), pixels(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))


def _numbered(count: int) -> Series:
    return Series(range(1, count + 1), name="row")
