"""Loaders: each returns a data set as one pool, its train and test samples together."""

from pathlib import Path

import numpy as np

from coterie.data import cache
from coterie.data.arrays import beside, class_labels, join, model_inputs, pixels
from coterie.data.idx import read_idx
from coterie.data.npz import read_npy, read_npz
from coterie.data.silo import Array, Pool
from coterie.data.sources import BY_HAND, FORMS, SOURCES, SPEECHES
from coterie.data.text import roles
from coterie.errors import BadInput

LAYOUTS = (  # how archives name their arrays: inputs and labels of each part
    (("x", "y"),),
    (("x_train", "y_train"), ("x_test", "y_test")),
    (("train_images", "train_labels"), ("val_images", "val_labels"), ("test_images", "test_labels")),
)


def digits() -> Pool:
    """The 1797 hand-written 8×8 digits that come with scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise BadInput(
            "data set digits: scikit-learn is not installed; run `pip install scikit-learn` or name another set"
        ) from None
    raw = load_digits()
    return Pool("digits", (raw.images[:, None] / 16).astype(np.float32), raw.target.astype(np.int64), 10)


def idx(name: str, path: str, classes: int, stems: tuple[str, str] = ("train", "t10k")) -> Pool:
    """MNIST and its family, from the folder with the four official files (and who wrote what, if it is there)."""
    folder = _path(name, path)
    if _is_archive(name, folder):
        return npz(name, str(folder), classes)
    images, labels, writers = [], [], []
    for stem, part in zip(stems, ("train", "test"), strict=True):
        images.append(read_idx(_plain_or_gz(folder, f"{stem}-images-idx3-ubyte")))
        labels.append(read_idx(_plain_or_gz(folder, f"{stem}-labels-idx1-ubyte")))
        if images[-1].ndim != 3 or labels[-1].ndim != 1 or len(images[-1]) != len(labels[-1]):
            raise BadInput(
                f"{folder}: {stem} images {images[-1].shape} and labels {labels[-1].shape} do not belong together; "
                "fetch the four files again"
            )
        if (folder / f"writer_{part}.npy").exists():
            writers.append(read_npy(folder / f"writer_{part}.npy"))
    y = class_labels(np.concatenate(labels), classes, str(folder))
    x = pixels(np.concatenate(images)[:, None])
    if name == "emnist":
        x = np.ascontiguousarray(x.swapaxes(2, 3))  # EMNIST's files lie on their side
    owner = np.concatenate(writers) if len(writers) == 2 else None
    if owner is not None and owner.shape != y.shape:
        raise BadInput(
            f"{folder}: {len(owner)} writers for {len(y)} images; fetch writer_train.npy and writer_test.npy"
        )
    return Pool(name, x, y, classes, owner=owner, test=_last(len(y), len(labels[-1])))


def npz(name: str, path: str, classes: int | None = None) -> Pool:
    """An archive with x and y, x_train … y_test, or MedMNIST's names; `coarse` and `owner` are taken if there."""
    file = _path(name, path)
    file = file / f"{name}.npz" if file.is_dir() else file
    arrays = read_npz(file)
    layout = next((parts for parts in LAYOUTS if all(key in arrays for pair in parts for key in pair)), None)
    if layout is None:
        raise BadInput(
            f"{file}: found arrays {', '.join(sorted(arrays))}; "
            "name them x and y, or x_train, y_train, x_test and y_test, or as MedMNIST does"
        )
    x = join(arrays, [inputs for inputs, _ in layout], file)
    y = join(arrays, [labels for _, labels in layout], file)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if len(x) != len(y) or len(x) == 0:
        raise BadInput(f"{file}: {len(x)} inputs and {len(y)} labels; give one label per input, and some")
    inputs, owner = model_inputs(x, file), beside(arrays, "owner", len(y), file)
    test = _last(len(y), len(arrays[layout[-1][1]])) if len(layout) > 1 else None
    if np.issubdtype(y.dtype, np.floating) and classes is None:
        return Pool(name, inputs, y.astype(np.float32), 0, owner=owner, test=test)
    y = class_labels(y, classes, str(file))
    coarse = beside(arrays, "coarse", len(y), file)
    return Pool(name, inputs, y, classes or int(y.max()) + 1, coarse=coarse, owner=owner, test=test)


def cifar(name: str, path: str, classes: int) -> Pool:
    """CIFAR-10 or CIFAR-100, from its official binary files or from an .npz archive."""
    folder = _path(name, path)
    if _is_archive(name, folder):
        return npz(name, str(folder), classes)
    head = 1 if name == "cifar10" else 2  # bytes before the pixels: class, or super-class and class
    parts = []
    for file in FORMS[name][0]:
        if not (folder / file).is_file():
            raise BadInput(f"{folder / file}: no such file; check `path`")
        raw = np.fromfile(folder / file, np.uint8)
        if len(raw) == 0 or len(raw) % (head + 3072):
            raise BadInput(f"{folder / file}: {len(raw)} bytes is not a whole number of images; fetch it again")
        parts.append(raw.reshape(-1, head + 3072))
    rows = np.concatenate(parts)
    y = class_labels(rows[:, head - 1], classes, str(folder))
    coarse = rows[:, 0].astype(np.int64) if head == 2 else None
    x = pixels(rows[:, head:].reshape(-1, 3, 32, 32))
    return Pool(name, x, y, classes, coarse=coarse, test=_last(len(y), len(parts[-1])))


def speeches(name: str, path: str, window: int, stride: int) -> Pool:
    """A text of speaking roles, for next-character prediction."""
    file = _path(name, path)
    return roles(name, file / SPEECHES if file.is_dir() else file, window, stride)


def _last(count: int, last: int) -> Array:
    """The last samples, which a publisher keeps for testing: (count,)."""
    return np.arange(count) >= count - last


def _path(name: str, path: str) -> Path:
    """Where a set's files are: as given, or else where they are kept."""
    if path:
        return _given(path)
    kept = cache.place(name)
    if kept is None:
        ways = [f"run `coterie data fetch {name}`"] * (name in SOURCES)
        ways += [f"`coterie data import {name} PATH`"] * (name in SOURCES or name in BY_HAND)
        ways += [f"put {', '.join(FORMS[name][0])} into {cache.folder(name)}"] * bool(ways)
        raise BadInput(", or ".join([f"data set {name}: give `path`, where its files are", *ways]))
    return kept


def _given(path: str) -> Path:
    """A path of a study, where there is a file or a folder."""
    try:
        found = Path(path).expanduser()
        if found.is_file() or found.is_dir():
            return found
    except (OSError, ValueError, RuntimeError):  # too long, not a path at all, the home of nobody
        pass
    raise BadInput(f"{path[:200]}: cannot be read (No such file or directory); check `path`")


def _is_archive(name: str, path: Path) -> bool:
    return path.suffix == ".npz" or (path / f"{name}.npz").is_file()


def _plain_or_gz(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise BadInput(f"{folder}: neither {name} nor {name}.gz is there; check `path`")
