"""Data files: IDX, NumPy's archives, CIFAR's binary files, LEAF's JSON and plain text, whole, damaged and made up."""

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from fuzzing import fuzz, scratch, survives
from hypothesis import example
from hypothesis import strategies as st
from mutate import bytes_like, names, numbers

from coterie.data import catalog, sets
from coterie.data.archives import Member
from coterie.data.idx import read_idx
from coterie.data.leaf import read_leaf
from coterie.data.npz import read_npy, read_npz
from coterie.data.silo import check_silos
from coterie.data.text import roles
from coterie.deploy.own import own_silo

sizes = st.integers(0, 5) | st.sampled_from([2**16, 2**31 - 1, 2**31, 2**32 - 1, 10**12, 2**62, 2**63, 10**30])


def read(content: bytes, name: str, act: Callable[[Path], Any]) -> Any:
    """What a reader makes of a file."""
    with scratch() as folder:
        path = folder / name
        path.write_bytes(content)
        return survives(lambda: act(path))


# IDX


def idx(shape: list[int], data: bytes, kind: int = 8) -> bytes:
    dims = [min(n, 2**32 - 1) for n in shape]
    return bytes([0, 0, kind, len(dims)]) + struct.pack(f">{len(dims)}I", *dims) + data


made_idx = st.builds(idx, st.lists(sizes, max_size=5), st.binary(max_size=40), st.integers(0, 15))
VALID_IDX = idx([2, 3, 3], bytes(range(18)))


@fuzz(500, bytes_like(VALID_IDX, front=16) | made_idx, st.booleans())
@example(idx([2**32 - 1, 0, 2**32 - 1, 2**32 - 1], b""), False)
@example(idx([10**6, 10**6], b""), True)
def test_an_idx_file_is_read_or_refused(content: bytes, packed: bool) -> None:
    content = gzip.compress(content, 1) if packed else content
    array = read(content, "x.gz" if packed else "x", read_idx)
    assert array is None or array.nbytes < len(content) * 1100


@fuzz(150, bytes_like(gzip.compress(VALID_IDX)))
def test_a_damaged_gzip_file_is_refused(content: bytes) -> None:
    read(content, "x.gz", read_idx)


# NumPy's


def npy(descr: Any, order: Any, shape: Any, data: bytes, version: tuple[int, int] = (1, 0), more: str = "") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape!r}{more}}}".encode() + b"\n"
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + length + header + data


descrs = st.sampled_from(
    ["<f4", "<i8", "|u1", "|b1", "|O", "O", "<U3", "|S0", "<U0", "|V0", "<M8[s]", "<c16", ">f2", "|S1000000000",
     "x", "", "f4,f4"]
) | st.sampled_from([[("a", "<f4")], [("a", "|O")], [("a", "<f4", (10**9,))], 3, None, ["<f4"],
                     {"names": ["a"]}])  # fmt: skip
shapes = st.lists(sizes | st.integers(-3, -1) | st.sampled_from([True, 1.5, None, "x"]), max_size=4).map(
    tuple
) | st.just(3)
made_npy = st.builds(
    npy, descrs, st.sampled_from([False, True, 0, None]), shapes, st.binary(max_size=64),
    st.sampled_from([(1, 0), (2, 0), (3, 0), (9, 9)]),
    st.sampled_from(["", ", 'x': 1", ", (", " or 1", ", **{}", "[" * 500]),
)  # fmt: skip


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


VALID_NPY = [
    saved(np.arange(6, dtype=np.float32).reshape(2, 3)),
    saved(np.asfortranarray(np.ones((2, 3)))),
    saved(np.array(["a", "bc"])),
]


@fuzz(600, bytes_like(*VALID_NPY, front=90) | made_npy)
@example(npy("<f4", False, (10**12,), b""))
@example(npy("|S0", False, (10**12,), b""))
def test_an_npy_file_is_read_or_refused(content: bytes) -> None:
    array = read(content, "x.npy", read_npy)
    assert array is None or (not array.dtype.hasobject and array.size <= max(len(content), 1))


def zipped(members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, kind)
    return file.getvalue()


def archive(**arrays: Any) -> bytes:
    return zipped({f"{name}.npy": saved(array) for name, array in arrays.items()}, zipfile.ZIP_STORED)


PARTS = {"x": np.random.default_rng(0).random((6, 4), np.float32), "y": np.array([0, 1, 2, 0, 1, 2])}
SPLIT = {f"{axis}_{part}": PARTS[axis] for part in ("train", "test") for axis in "xy"}
VALID_NPZ = [archive(**PARTS), archive(**SPLIT), archive(**PARTS, owner=np.array(list("aabbcc")))]
keys = st.sampled_from(["x", "y", "x_train", "y_train", "x_test", "y_test", "owner", "coarse", "x_validation"])
made_npz = st.builds(
    zipped,
    st.dictionaries(
        keys.map("{}.npy".format) | names.filter(lambda name: name.isascii() and name.split("\0")[0]),
        made_npy | st.binary(max_size=20),
        max_size=4,
    ),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]),
)


def bomb(name: str, megabytes: int = 800) -> bytes:
    """A member of zeros that unpacks to a thousand times its size."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made, made.open(name, "w") as member:
        for _ in range(megabytes):
            member.write(b"\0" * (1 << 20))
    return file.getvalue()


BESIDE = bomb("notes.txt")


@fuzz(600, bytes_like(*VALID_NPZ) | made_npz)
@example(BESIDE)
@example(VALID_NPY[0] + VALID_NPZ[0])
@example(zipped({"x.npy": npy("<f4", False, (10**12, 250), b"")}))
def test_an_npz_archive_is_read_or_refused(content: bytes) -> None:
    arrays = read(content, "x.npz", read_npz)
    assert arrays is None or all(not array.dtype.hasobject for array in arrays.values())


kinds = st.sampled_from(
    [np.float32, np.float64, np.uint8, np.int64, np.uint64, np.bool_, np.float16, np.complex64, "U2", "S2", "M8[s]"]
)
small_shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple) | st.sampled_from(
    [(6,), (6, 4), (6, 1), (6, 0), (10**12, 0), (0, 10**12)]
)


@st.composite
def arrays(draw: Any) -> dict[str, Any]:
    """The arrays of an archive, some of them others than they should be."""
    found = dict(draw(st.sampled_from([PARTS, SPLIT])))
    for name in draw(st.lists(keys, min_size=1, max_size=3)):
        shape, kind = draw(small_shapes), draw(kinds)
        value = draw(st.sampled_from([0, 1, 2, 255, np.nan, np.inf, -1, 2**40, 2**63, "x"]))
        with np.errstate(all="ignore"):
            try:
                found[name] = np.full(shape, value, np.float64 if isinstance(value, float) else None).astype(kind)
            except (ValueError, OverflowError, TypeError):
                found[name] = np.zeros(shape, kind)
    return found


@fuzz(900, arrays(), st.sampled_from(["npz", "femnist", "organamnist", "mnist", "silo"]))
@example({"x": np.zeros((10**12, 0)), "y": np.zeros((10**12, 0), np.int64)}, "npz")
@example({"x": np.zeros((0, 4), np.float32), "y": np.zeros((0, 1), np.float32)}, "silo")
@example({**SPLIT, "y_validation": np.zeros(3, np.int64), "x_validation": np.zeros((3, 9), np.float32)}, "silo")
def test_an_archive_makes_silos_or_is_refused(found: dict[str, Any], name: str) -> None:
    def load(path: Path) -> None:
        if name == "silo":
            silo, classes = own_silo("north", path)
            check_silos([silo], classes)
            assert len({part.x.shape[1:] for part in (silo.train, silo.validation, silo.test)}) == 1
            assert len({part.y.shape[1:] for part in (silo.train, silo.validation, silo.test)}) == 1
        else:
            catalog.load(name, {"path": str(path), "split": "iid", "silos": 2}, 0)

    read(archive(**found), "x.npz", load)


# CIFAR, LEAF, text


@fuzz(150, st.binary(max_size=8), st.integers(0, 2), st.integers(-1, 1), st.sampled_from(["cifar10", "cifar100"]))
def test_a_cifar_folder_is_read_or_refused(labels: bytes, images: int, off: int, name: str) -> None:
    with scratch() as folder:
        head = 1 if name == "cifar10" else 2
        for i, file in enumerate(catalog.sets.FORMS[name][0]):
            row = (labels * 8)[i : i + head].ljust(head, b"\0") + bytes(3072)
            (folder / file).write_bytes((row * images)[: max(0, len(row) * images + off * (i == 0))])
        survives(lambda: sets.cifar(name, str(folder), 10))


leaf_values = st.recursive(
    numbers | names | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
    max_leaves=5,
)
image = st.just([0.5] * 784) | st.lists(numbers, max_size=4) | st.just([1e300] * 784) | st.just([10**400] * 784)
held = st.fixed_dictionaries(
    {"x": st.lists(image, max_size=2) | leaf_values, "y": st.lists(numbers, max_size=2) | leaf_values}
)
leaf = st.fixed_dictionaries({"user_data": st.dictionaries(names, held | leaf_values, max_size=3) | leaf_values})
VALID_LEAF = json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.0] * 784], "y": [3]}}}).encode()


@fuzz(400, leaf.map(lambda table: json.dumps(table).encode()) | bytes_like(VALID_LEAF, front=60))
@example(b'{"user_data": {"a": {"x": 1, "y": 2}}}')
@example(b'{"user_data": ' * 100_000)
@example(json.dumps({"user_data": {"a": {"x": [[10**400] * 784], "y": [1]}}}).encode())
@example(json.dumps({"user_data": {"a" * 10**6: {"x": [[0] * 784] * 300, "y": [1] * 300}}}).encode())
def test_a_leaf_file_is_read_or_refused(content: bytes) -> None:
    found = survives(lambda: read_leaf([Member(PurePosixPath("a.json"), len(content), lambda: io.BytesIO(content))]))
    assert found is None or len(found["x"]) == len(found["y"]) == len(found["owner"])


PLAY = "HAMLET:\nTo be, or not to be: that is the question.\n\nOPHELIA:\nGood my lord.\n\n"


@fuzz(
    300,
    st.text(max_size=200).map(lambda t: t.encode(errors="surrogatepass")) | bytes_like(PLAY.encode() * 3),
    st.integers(1, 50),
    numbers,
)
@example((b"A:\n" + b"x" * 200_000), 100_000, 1)
def test_a_text_is_read_or_refused(content: bytes, window: int, stride: Any) -> None:
    table = {"window": window, "stride": stride, "silos": 1, "min_samples": 1}
    read(content, "play.txt", lambda path: catalog.load("shakespeare", {**table, "path": str(path)}, 0))
    read(content, "play.txt", lambda path: roles("play", path, window, 1))


@fuzz(200, names, st.sampled_from(["mnist", "cifar10", "npz", "femnist", "shakespeare"]))
@example("/dev/zero", "shakespeare")
@example("~nobody-here/x", "npz")
@example("\0", "mnist")
@example("x" * 5000, "cifar10")
def test_a_path_that_is_none_is_refused(path: str, name: str) -> None:
    survives(lambda: catalog.load(name, {"path": path}, 0))
