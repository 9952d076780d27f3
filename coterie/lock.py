"""A file that one process at a time holds; the system releases it when that process ends, however it does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a file, and whether that succeeded: without `wait` another process may hold it."""
    with path.open("a") as file:
        try:
            held = lock_descriptor(file.fileno(), blocking=wait)
        except OSError:
            held = True  # a file system without locks
        yield held
