"""The official files of the data sets: their addresses, their checksums, the names a loader looks for."""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class File:
    """A file as its publisher offers it."""

    name: str
    urls: tuple[str, ...]  # the publisher's own first, then mirrors: the checksum says that they are the same
    checksum: str  # "md5:…" as published; "sha256:…" where no MD5 is
    archive: bool = False  # holds the files a loader wants


_IDX = ("images-idx3-ubyte", "labels-idx1-ubyte")
_MNIST = tuple(f"{part}-{kind}" for part in ("train", "t10k") for kind in _IDX)
_EMNIST = tuple(f"emnist-byclass-{part}-{kind}" for part in ("train", "test") for kind in _IDX)
_CIFAR10 = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_CIFAR100 = ("train.bin", "test.bin")
SPEECHES = "shakespeare.txt"

# What makes a set complete: one of these lists of files, each of them plain or gzipped.
FORMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "mnist": (_MNIST, ("mnist.npz",)),
    "fashion-mnist": (_MNIST, ("fashion-mnist.npz",)),
    "emnist": (_EMNIST, ("emnist.npz",)),
    "cifar10": (_CIFAR10, ("cifar10.npz",)),
    "cifar100": (_CIFAR100, ("cifar100.npz",)),
    "organamnist": (("organamnist.npz",),),
    "pathmnist": (("pathmnist.npz",),),
    "femnist": (("femnist.npz",),),
    "shakespeare": ((SPEECHES,),),
    "npz": (("npz.npz",),),
}
BESIDE = {"mnist": ("writer_train.npy", "writer_test.npy")}  # taken along where they are


def _four(sums: tuple[str, ...], *sites: str) -> tuple[File, ...]:
    names = [f"{name}.gz" for name in _MNIST]
    return tuple(
        File(name, tuple(f"{site}/{name}" for site in sites), f"md5:{md5}")
        for name, md5 in zip(names, sums, strict=True)
    )


def _medmnist(name: str, md5: str) -> tuple[File, ...]:
    return (File(f"{name}.npz", (f"https://zenodo.org/records/10519652/files/{name}.npz?download=1",), f"md5:{md5}"),)


def _cifar(name: str, md5: str) -> tuple[File, ...]:
    return (File(name, (f"https://www.cs.toronto.edu/~kriz/{name}",), f"md5:{md5}", archive=True),)


SOURCES: dict[str, tuple[File, ...]] = {
    "mnist": _four(
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        "http://yann.lecun.com/exdb/mnist", "https://ossci-datasets.s3.amazonaws.com/mnist",
    ),
    "fashion-mnist": _four(
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    "emnist": (
        File(
            "gzip.zip", ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
            "md5:58c8d27c78d21e728a6bc7b3cc06412e", archive=True,
        ),
    ),
    "cifar10": _cifar("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": _cifar("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    "organamnist": _medmnist("organamnist", "68e3f8846a6bd62f0c9bf841c0d9eacc"),
    "pathmnist": _medmnist("pathmnist", "a8b06965200029087d5bd730944a56c1"),
    "shakespeare": (
        File(
            SPEECHES,
            ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
            "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        ),
    ),
}  # fmt: skip

# What cannot be downloaded ready-made, and how to come by it.
BY_HAND = {
    "femnist": (
        "nobody publishes it ready-made: build it with LEAF's scripts (https://github.com/TalwalkarLab/leaf, "
        "data/femnist: ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample), then "
        "`coterie data import femnist leaf/data/femnist/data`"
    ),
}

# Of the same files unpacked, so that a plain copy, or one packed anew, can be known for what it is.
UNPACKED: dict[str, dict[str, str]] = {
    "mnist": dict(zip(_MNIST, (
        "md5:6bbc9ace898e44ae57da46a324031adb", "md5:a25bea736e30d166cdddb491f175f624",
        "md5:2646ac647ad5339dbf082846283269ea", "md5:27ae3e4e09519cfbb04c329615203637",
    ), strict=True)),
    "fashion-mnist": dict(zip(_MNIST, (
        "md5:f4a8712d7a061bf5bd6d2ca38dc4d50a", "md5:9018921c3c673c538a1fc5bad174d6f9",
        "md5:8181f5470baa50b63fa0f6fddb340f0a", "md5:15d484375f8d13e6eb1aabb0c3f46965",
    ), strict=True)),
    "cifar100": dict(zip(_CIFAR100, (
        "md5:6172c7755cfe09b2fe270c85cebc1b15", "md5:4499cfba6c016c1be1438163640a0898",
    ), strict=True)),
}  # fmt: skip


def matches(path: Path, checksum: str) -> bool:
    """Whether a file has this checksum, "md5:…" or "sha256:…"."""
    with path.open("rb") as file:
        return _digest(file, checksum) == checksum


def published(name: str, path: Path) -> bool:
    """Whether a file of a set is byte for byte what was published, as it is or unpacked."""
    known = {file.name: file.checksum for file in SOURCES.get(name, ())}
    if path.name in known and matches(path, known[path.name]):
        return True
    inside = UNPACKED.get(name, {}).get(path.name.removesuffix(".gz"))
    if inside is None:
        return False
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _digest(file, inside) == inside  # type: ignore[arg-type]
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return False


def _digest(file: IO[bytes], like: str) -> str:
    kind = like.partition(":")[0]
    made = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))  # type: ignore[arg-type]
    return f"{kind}:{made.hexdigest()}"
