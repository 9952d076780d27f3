"""What a file holds, as the arrays a pool holds."""

from pathlib import Path

import numpy as np

from coterie.data.silo import Array
from coterie.errors import BadInput

MOST_CLASSES = 100_000


def pixels(raw: Array) -> Array:
    """Bytes as float32 from 0 to 1."""
    x = raw.astype(np.float32)
    x /= 255
    return x


def class_labels(y: Array, classes: int | None, where: str) -> Array:
    """Labels as int64, refused when they are not classes from 0 up."""
    if not (np.issubdtype(y.dtype, np.integer) or y.dtype == np.bool_):
        raise BadInput(f"{where}: labels are {y.dtype}; give whole numbers from 0 up")
    y = y.astype(np.int64)
    highest = (MOST_CLASSES if classes is None else classes) - 1
    if y.size == 0 or y.min() < 0 or y.max() > highest:
        found = f"run from {y.min()} to {y.max()}" if y.size else "are missing"
        raise BadInput(f"{where}: labels {found}; expected 0 to {highest}")
    return y


def model_inputs(x: Array, file: Path) -> Array:
    """Bytes are pixels, floats are features, other whole numbers are tokens."""
    if x.dtype == np.uint8:
        if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
            x = x.transpose(0, 3, 1, 2)
        return pixels(np.ascontiguousarray(x[:, None] if x.ndim == 3 else x))
    if np.issubdtype(x.dtype, np.floating) or x.dtype == np.bool_:
        with np.errstate(over="ignore"):
            made = x.astype(np.float32)
        if (np.isinf(made) & np.isfinite(x)).any():
            raise BadInput(f"{file}: inputs are beyond what float32 holds; count them in a larger unit")
        return made
    if np.issubdtype(x.dtype, np.integer):
        return x.astype(np.int64)
    raise BadInput(f"{file}: inputs are {x.dtype}; give numbers")


def join(arrays: dict[str, Array], names: list[str], file: Path) -> Array:
    """Several arrays of an archive, one after the other."""
    shapes = {name: arrays[name].shape for name in names}
    if any(not shape for shape in shapes.values()) or len({shape[1:] for shape in shapes.values()}) > 1:
        raise BadInput(f"{file}: arrays {shapes} cannot be put together; give them one row per sample, of one shape")
    kinds = {name: arrays[name].dtype for name in names}
    mixed = {np.dtype(np.uint8)} < {*kinds.values()} and any(kind.kind == "f" for kind in kinds.values())
    if mixed or len({kind.kind in "buif" or kind.kind for kind in kinds.values()}) > 1:  # bytes are pixels of 0 to 255
        types = ", ".join(f"{name} of {kind}" for name, kind in kinds.items())
        raise BadInput(f"{file}: arrays {types} cannot be put together; give them one type")
    return np.concatenate([arrays[name] for name in names])


def beside(arrays: dict[str, Array], extra: str, count: int, file: Path) -> Array | None:
    """An optional array of one value per sample: `coarse`, or `coarse_train` and `coarse_test`, or `y_train_coarse`…"""
    for names in ([extra], [f"{extra}_train", f"{extra}_test"], [f"y_train_{extra}", f"y_test_{extra}"]):
        if all(name in arrays for name in names):
            values = join(arrays, names, file)
            if values.shape != (count,):
                raise BadInput(f"{file}: {extra} is {values.shape}; give one value for each of the {count} samples")
            return values.astype(np.int64) if extra == "coarse" else values
    return None
