"""PFLlib's folders: `train/0.npz` and `test/0.npz` for client 0, each a dict of x and y that NumPy wrote as a pickle.

The pickle is interpreted, never unpickled (`coterie.data.pickled`).
"""

import zipfile
from pathlib import Path

import numpy as np
from pandas import Series

from coterie.data.archives import bounded, reading
from coterie.data.npz import DAMAGED, LARGEST, check_sizes, described
from coterie.data.own.sides import TEST, TRAIN
from coterie.data.pickled import held_arrays
from coterie.data.silo import Array, Indices
from coterie.errors import BadInput

FOLDERS = ("train", "test")
CONFIG = "config.json"  # how PFLlib made the split; everything in it shows in the files


def is_pfllib(folder: Path) -> bool:
    """Whether a folder has PFLlib's form: train and test with numbered archives, and nothing else but its settings."""
    inside = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} - {CONFIG}
    if inside != {*FOLDERS} or not all((folder / name).is_dir() for name in FOLDERS):
        return False
    files = [file for name in FOLDERS for file in (folder / name).iterdir()]
    return bool(files) and all(file.suffix == ".npz" and file.stem.isdecimal() for file in files)


def read_clients(folder: Path) -> dict[str, tuple[Array, Series, Indices]]:
    """By client its inputs (n, ...), its labels (n,), and whether each row trains or tests."""
    numbers = {name: sorted(int(file.stem) for file in (folder / name).glob("*.npz")) for name in FOLDERS}
    if numbers["train"] != numbers["test"]:
        odd = sorted({*numbers["train"]} ^ {*numbers["test"]})[0]
        raise BadInput(f"{folder}: client {odd} is in train or in test alone; generate the data set again")
    width = len(str(numbers["train"][-1]))
    return {f"client-{number:0{width}d}": _client(folder, number) for number in numbers["train"]}


def _client(folder: Path, number: int) -> tuple[Array, Series, Indices]:
    parts = [_part(folder / name / f"{number}.npz") for name in FOLDERS]
    (x, y), (x_test, y_test) = parts
    if x.shape[1:] != x_test.shape[1:] or x.dtype != x_test.dtype:
        raise BadInput(f"{folder}: client {number} trains on samples {x.shape[1:]} and tests on {x_test.shape[1:]}")
    sides = np.repeat([TRAIN, TEST], [len(y), len(y_test)])
    return np.concatenate([x, x_test]), Series(np.concatenate([y, y_test])), sides


def _part(path: Path) -> tuple[Array, Array]:
    """The x (n, ...) and y (n,) of an archive."""
    damaged = (*DAMAGED, LookupError, AttributeError)
    readable = reading(path, damaged, "damaged or not of PFLlib", "generate the data set again")
    with readable, zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename == "data.npy"]
        check_sizes(entries, path)
        with archive.open(entries[0]) as file:
            described(file, str(path))  # what NumPy wrote before the pickle
            arrays = held_arrays(bounded(file, LARGEST, str(path)))
    if not {"x", "y"} <= arrays.keys() or len(arrays["x"]) != len(arrays["y"]) or arrays["y"].ndim != 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise BadInput(f"{path}: holds {shapes or 'nothing'}; expected x and, for each of its samples, one label y")
    return arrays["x"], arrays["y"]
