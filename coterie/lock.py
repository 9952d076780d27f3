"""A file that one process at a time holds; the system releases it when that process ends, however it does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a file, and whether that succeeded: without `wait` another process may hold it."""
    with path.open("a"):  # by the rights of its folder; an error here is one of the folder
        pass
    lock = FileLock(path, timeout=-1 if wait else 0)
    held = True
    try:
        lock.acquire()
    except Timeout:
        held = False
    except (OSError, NotImplementedError):
        pass  # a file system without locks
    try:
        yield held
    finally:
        lock.release()
