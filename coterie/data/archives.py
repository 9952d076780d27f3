"""The files in a folder, a tar or a zip, read one by one: nothing is unpacked to where an archive would have it."""

import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from coterie.errors import BadInput, first_line

LARGEST = 64 << 30  # bytes of all files together, unpacked
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # other ways take as much memory as a header says
CHUNK = 1 << 20

DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, NotImplementedError, ValueError,
    OverflowError, struct.error,
)  # fmt: skip


@dataclass(frozen=True)
class Member:
    """A regular file and its size; links and devices are none."""

    name: PurePosixPath  # within the folder or archive; looked at, never written to
    size: int
    open: Callable[[], AbstractContextManager[IO[bytes]]]


@contextmanager
def reading(path: Path, damaged: tuple[type[Exception], ...] = (), what: str = "", remedy: str = "") -> Iterator[None]:
    """A file that cannot be read, or turns out to be damaged meanwhile, is an error in one line."""
    try:
        yield
    except damaged as error:
        raise BadInput(f"{path}: {what} ({first_line(error)}); {remedy}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror or error}); check the path") from None


@contextmanager
def members(path: Path) -> Iterator[list[Member]]:
    """What a folder, a tar or a zip holds, or a single file, in an order that does not depend on the disk."""
    encrypted = reading(path, (RuntimeError,), "cannot be read", "unpack it first")  # what zipfile then raises
    with encrypted, reading(path, DAMAGED, "damaged or not an archive", "get it again"):
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            yield [_plain(file, PurePosixPath(file.relative_to(path).as_posix())) for file in files]
        elif zipfile.is_zipfile(path) and path.suffix != ".npz":
            with zipfile.ZipFile(path) as archive:
                entries = [entry for entry in archive.infolist() if not entry.is_dir()]
                _check_total(sum(entry.file_size for entry in entries), path)
                yield [_zipped(archive, entry) for entry in entries]
        elif path.suffix in (".tar", ".tgz", ".tbz2", ".txz") or ".tar" in path.suffixes:
            with _tar(path) as tar:
                yield [_tarred(tar, entry) for entry in _bounded(tar, path) if entry.isreg()]
        elif path.is_file():
            yield [_plain(path, PurePosixPath(path.name))]
        else:
            raise BadInput(f"{path}: no such file or folder; check the path")


def read_at_most(file: IO[bytes], limit: int) -> bytearray:
    """Read piece by piece, so that memory follows what is there and not what a header claims."""
    data = bytearray()
    while len(data) < limit and (piece := file.read(min(CHUNK, limit - len(data)))):
        data += piece
    return data


def bounded(file: IO[bytes], limit: int, where: str) -> bytes:
    """All of a file, unless that is more than it may be: what an archive holds can unpack to anything."""
    data = read_at_most(file, limit + 1)
    if len(data) > limit:
        raise BadInput(f"{where}: more than {limit} bytes; give a smaller file")
    return bytes(data)


def _tar(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path)
    except MemoryError:  # an .xz says how much its unpacking takes, up to 4 GB
        raise BadInput(f"{path}: unpacking it takes too much memory; pack it as .tar.gz") from None


def _bounded(tar: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """What a tar holds, looked at one by one: to pass by a file, it must be unpacked."""
    total = 0
    for entry in tar:
        if entry.issparse():
            raise BadInput(f"{path} {entry.name}: is packed as a sparse file; pack it as a plain one")
        total += entry.size + tarfile.BLOCKSIZE
        _check_total(total, path)
        yield entry


def _check_total(size: int, path: Path) -> None:
    if size > LARGEST:
        raise BadInput(f"{path}: unpacks to {size} bytes or more, the limit is {LARGEST}; give a smaller archive")


def _plain(file: Path, name: PurePosixPath) -> Member:
    return Member(name, file.stat().st_size, lambda: file.open("rb"))


def _zipped(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    if entry.compress_type not in PACKED:
        raise BadInput(f"{archive.filename} {entry.filename}: packed in an unusual way; pack it again")
    return Member(PurePosixPath(entry.filename), entry.file_size, lambda: archive.open(entry))


def _tarred(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> Member:
    def opened() -> IO[bytes]:
        file = tar.extractfile(entry)
        assert file is not None  # it is a regular file
        return file

    return Member(PurePosixPath(entry.name), entry.size, opened)
