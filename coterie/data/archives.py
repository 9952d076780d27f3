"""The files in a folder, a tar or a zip, read one by one: nothing is unpacked to where an archive would have it."""

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from coterie.errors import BadInput


@dataclass(frozen=True)
class Member:
    """A regular file and its size; links and devices are none."""

    name: PurePosixPath  # within the folder or archive; looked at, never written to
    size: int
    open: Callable[[], AbstractContextManager[IO[bytes]]]


@contextmanager
def members(path: Path) -> Iterator[list[Member]]:
    """What a folder, a tar or a zip holds, or a single file, in an order that does not depend on the disk."""
    try:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            yield [_plain(file, PurePosixPath(file.relative_to(path).as_posix())) for file in files]
        elif zipfile.is_zipfile(path) and path.suffix != ".npz":
            with zipfile.ZipFile(path) as archive:
                entries = [entry for entry in archive.infolist() if not entry.is_dir()]
                yield [_zipped(archive, entry) for entry in entries]
        elif path.suffix in (".tar", ".tgz", ".tbz2", ".txz") or ".tar" in path.suffixes:
            with tarfile.open(path) as tar:
                yield [_tarred(tar, entry) for entry in tar if entry.isreg()]
        elif path.is_file():
            yield [_plain(path, PurePosixPath(path.name))]
        else:
            raise BadInput(f"{path}: no such file or folder; check the path")
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, NotImplementedError) as error:
        raise BadInput(f"{path}: damaged or not an archive ({_line(error)}); get it again") from None
    except RuntimeError as error:  # what zipfile raises of an encrypted one
        raise BadInput(f"{path}: cannot be read ({_line(error)}); unpack it first") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror or error}); check the path") from None


def _plain(file: Path, name: PurePosixPath) -> Member:
    return Member(name, file.stat().st_size, lambda: file.open("rb"))


def _zipped(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    return Member(PurePosixPath(entry.filename), entry.file_size, lambda: archive.open(entry))


def _tarred(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> Member:
    def opened() -> IO[bytes]:
        file = tar.extractfile(entry)
        assert file is not None  # it is a regular file
        return file

    return Member(PurePosixPath(entry.name), entry.size, opened)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
