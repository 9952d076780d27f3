"""Whether a file is the one that was published."""

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import IO

from coterie.data.sources import SOURCES, UNPACKED


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
