"""Archives and pictures on import: nothing is written beside the cache, unpacked without end, or run."""

import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import fuzz, scratch, survives
from hypothesis import example
from hypothesis import strategies as st
from mutate import bytes_like, names

from coterie.data.archives import members
from coterie.data.importing import import_set

Image = pytest.importorskip("PIL.Image")


def picture(kind: str = "PNG", size: tuple[int, int] = (28, 28), mode: str = "L", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, 7).save(file, kind, **options)
    return file.getvalue()


def wide_png(width: int, height: int) -> bytes:
    """A picture that claims to be large and holds next to nothing."""
    import struct
    import zlib

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 50)) + chunk(b"IEND", b"")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n%%EndComments\n"
EPS += b"(/tmp/coterie-fuzz-owned) (w) file closefile\n%%EOF\n"
PICTURES = [picture(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM")] + [
    picture(mode="RGB"),
    picture(mode="RGBA"),
    picture("PNG", (3, 3)),
]
LARGE = [wide_png(2**31 - 1, 2**31 - 1), wide_png(20_000, 20_000), wide_png(10_000, 10_000), wide_png(5000, 5000), EPS]
TABLE = b"file,label,owner\na/1.png,3,x\nb/2.png,4,y\n"

paths = st.sampled_from(
    [
        "a/1.png",
        "b/2.png",
        "train/3/x.png",
        "labels.csv",
        "a.jpg",
        "a/x.tif",
        "data_batch_1.bin",
        "mnist.npz",
        "all.json",
    ]
)
contents = (
    st.sampled_from([*PICTURES, *LARGE, TABLE])
    | bytes_like(*PICTURES)
    | bytes_like(TABLE)
    | st.text(max_size=60).map(lambda t: t.encode(errors="replace"))
)
files = st.dictionaries(paths | names, contents, max_size=4)
KINDS = [
    tarfile.REGTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.FIFOTYPE,
    tarfile.DIRTYPE,
    tarfile.GNUTYPE_SPARSE,
]


def tarred(held: dict[str, bytes], kind: bytes = tarfile.REGTYPE, mode: str = "w", claim: int | None = None) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in held.items():
            info = tarfile.TarInfo(name.replace("\0", "").encode(errors="replace").decode())
            info.type, info.linkname = kind, "/etc/passwd"
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    made = file.getvalue()
    if claim is not None and mode == "w" and held:
        head = tarfile.TarInfo("a/1.png")
        head.size = claim
        made = head.tobuf(tarfile.GNU_FORMAT) + made[512:]
    return made


def zipped(held: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in held.items():
            if name.split("\0")[0]:
                archive.writestr(zipfile.ZipInfo(name.encode(errors="replace").decode()), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def sparse(name: str, size: int) -> bytes:
    """A tar of a kilobyte whose one file is said to be mostly a hole."""
    info = tarfile.TarInfo(name)
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[386:398], head[398:410] = b"%011o\0" % 0, b"%011o\0" % 0
    head[483:495] = b"\x80" + size.to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + bytes(1024)


built = st.one_of(
    st.builds(tarred, files, st.sampled_from(KINDS), st.sampled_from(["w", "w:gz", "w:bz2", "w:xz"])),
    st.builds(tarred, files, st.just(tarfile.REGTYPE), st.just("w"), st.sampled_from([0, 10**6, 10**12, 2**62])),
    st.builds(zipped, files),
)
VALID_TAR, VALID_ZIP = (
    tarred({"a/1.png": PICTURES[0], "b/2.png": PICTURES[0]}),
    zipped({"a/1.png": PICTURES[0], "b/2.png": PICTURES[0]}),
)
archives = st.one_of(
    built, built, bytes_like(VALID_TAR, VALID_ZIP), bytes_like(tarred({"a/1.png": PICTURES[0]}, mode="w:gz"))
)


@pytest.fixture(autouse=True, scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("cache")
        patch.setenv("COTERIE_DATA", str(root / "sets"))
        yield root


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@fuzz(
    700,
    archives,
    st.sampled_from(["x.tar", "x.tar.gz", "x.zip", "x"]),
    st.sampled_from(["mnist", "cifar10", "femnist", "shakespeare"]),
)
@example(tarred({"a/1.png": EPS}), "x.tar", "mnist")
@example(tarred({"a/1.png": wide_png(20_000, 20_000)}), "x.tar", "mnist")
@example(sparse("data_batch_1.bin", 3 << 30), "x.tar", "cifar10")
@example(sparse("shakespeare.txt", 10**12), "x.tar", "shakespeare")
@example(tarred({"../../mnist.npz": b"x"}), "x.tar", "mnist")
def test_an_archive_is_imported_or_refused_and_leaves_nothing_elsewhere(
    below: Path, content: bytes, file: str, name: str
) -> None:
    with scratch() as folder:
        path = folder / file
        path.write_bytes(content)
        survives(lambda: import_set(name, path))
        assert _tree(folder) == {file}
    assert {entry.name for entry in below.iterdir()} <= {"sets"}
    kept = {entry.name for entry in (below / "sets").iterdir()} if (below / "sets").exists() else set()
    assert kept <= {"mnist", "cifar10", "femnist", "shakespeare"}
    assert not Path("/tmp/coterie-fuzz-owned").exists()


@fuzz(250, archives, st.sampled_from(["x.tar", "x.zip", "x.tar.gz"]))
def test_what_an_archive_lists_can_be_read_or_is_refused(content: bytes, file: str) -> None:
    def look(path: Path) -> None:
        with members(path) as found:
            for member in found[:3]:
                with member.open() as opened:
                    opened.read(1000)

    with scratch() as folder:
        (folder / file).write_bytes(content)
        survives(lambda: look(folder / file))


@fuzz(300, st.lists(st.tuples(paths, contents), max_size=4))
@example([("labels.csv", b"file,label\n../../../../etc/passwd,1\n")])
@example([("labels.csv", b"file,label,owner\na/1.png,3," + b"x" * 10**6 + b"\n"), ("a/1.png", PICTURES[0])])
def test_a_folder_of_pictures_is_imported_or_refused(held: list[tuple[str, bytes]]) -> None:
    with scratch() as folder:
        for name, content in held:
            path = folder / "pictures" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (folder / "pictures").mkdir(exist_ok=True)
        (folder / "pictures" / "away").symlink_to("/etc")
        survives(lambda: import_set("mnist", folder / "pictures"))


def test_whole_pictures_are_taken() -> None:
    with scratch() as folder:
        (folder / "x.tar").write_bytes(VALID_TAR)
        assert import_set("mnist", folder / "x.tar").samples == 2
        assert np.load(Path(os.environ["COTERIE_DATA"]) / "mnist" / "mnist.npz")["y"].tolist() == [0, 1]
