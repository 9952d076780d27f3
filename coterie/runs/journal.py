"""What a run has measured, appended to a file round by round, so that neither memory nor a crash is a limit.

An entry is its kind (one byte), its length (eight bytes) and its content. Whoever reads while a run goes on sees every
entry that is whole; a run that goes on cuts off what its last checkpoint does not know of.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEAD = 9  # bytes before an entry's content


@dataclass(frozen=True)
class Mark:
    """How much of a journal there is, and the checksum of that."""

    length: int
    sha256: str


class Journal:
    """A file to append to."""

    def __init__(self, path: Path) -> None:
        self.path, self._length, self._sum = path, 0, hashlib.sha256()

    def append(self, entries: list[tuple[bytes, bytes]]) -> None:
        """Write entries (kind, content) so that they last."""
        if not entries:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = [part for kind, body in entries for part in (kind, len(body).to_bytes(8, "little"), body)]
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.seek(self._length)
            file.truncate()
            file.writelines(written)
            file.flush()
            os.fsync(file.fileno())
        for part in written:
            self._length += len(part)
            self._sum.update(part)

    def mark(self) -> Mark:
        """Where it stands."""
        return Mark(self._length, self._sum.hexdigest())

    def back_to(self, mark: Mark) -> bool:
        """Go on from there, forgetting what was written after; False if what was written before is no longer so."""
        found, left = hashlib.sha256(), mark.length
        if left:
            try:
                with self.path.open("rb") as file:
                    while left and (part := file.read(min(left, 1 << 20))):
                        found.update(part)
                        left -= len(part)
            except FileNotFoundError:
                return False
        if left or found.hexdigest() != mark.sha256:
            return False
        self._length, self._sum = mark.length, found
        return True


def entries(path: Path, kind: bytes) -> Iterator[bytes]:
    """The whole entries of a kind, in the order in which they were written."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while len(head := file.read(HEAD)) == HEAD:
            length = int.from_bytes(head[1:], "little")
            if file.tell() + length > size:
                return  # the rest of it is being written, or never was
            if head[:1] == kind:
                yield file.read(length)
            else:
                file.seek(length, os.SEEK_CUR)
