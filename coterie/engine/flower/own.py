"""A silo's own data: one NumPy archive."""

from pathlib import Path

import numpy as np

from coterie.data.arrays import class_labels, model_inputs
from coterie.data.npz import read_npz
from coterie.data.silo import Array, Part, Silo, check_silos
from coterie.errors import BadInput
from coterie.keys import generator

SHARES = (0.6, 0.2)  # of samples that come without a split: training, validation; the rest is the test


def own_silo(name: str, path: Path) -> tuple[Silo, int]:
    """The silo that an archive holds, and its number of classes as far as it can tell (0: targets are numbers).

    The archive has x_train, y_train, x_test, y_test and maybe x_validation, y_validation; or x and y, which are split
    by the silo's name, always alike.
    """
    arrays = read_npz(path)
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        named = [(arrays.get(f"x_{s}"), arrays.get(f"y_{s}")) for s in ("train", "validation", "test")]
        empty = arrays["x_train"][:0], arrays["y_train"][:0]
        raw = [empty if x is None or y is None else (x, y) for x, y in named]
    elif {"x", "y"} <= arrays.keys():
        x, y = arrays["x"], arrays["y"]
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise BadInput(f"{path}: x {x.shape} and y {y.shape} do not go together; give one label per input")
        order = generator(0, "silo split", name).permutation(len(y))
        ends = [int(len(y) * SHARES[0]), int(len(y) * sum(SHARES))]
        raw = [(x[part], y[part]) for part in np.split(order, ends)]
    else:
        found = ", ".join(sorted(arrays))
        raise BadInput(f"{path}: found arrays {found}; name them x_train, y_train, x_test, y_test, or x and y")
    parts = [_part(x, y, path) for x, y in raw]
    labels = parts[0].y
    classes = 0 if labels.dtype.kind == "f" else 1 + max(int(p.y.max()) for p in parts if len(p))
    silo = Silo(name, *parts)
    check_silos([silo], classes)
    return silo, classes


def save_silo(silo: Silo, path: Path) -> None:
    """A silo's data as such an archive."""
    parts = {"train": silo.train, "validation": silo.validation, "test": silo.test}
    arrays = {f"{axis}_{split}": getattr(part, axis) for split, part in parts.items() for axis in ("x", "y")}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def _part(x: Array, y: Array, path: Path) -> Part:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.dtype.kind == "f":
        return Part(model_inputs(x, path), y.astype(np.float32))
    return Part(model_inputs(x, path), class_labels(y, None, str(path)) if len(y) else y.astype(np.int64))
