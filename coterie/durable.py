"""Files that survive a crash: each is there whole, as it was before or as it is now. Nothing here imports PyTorch."""

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it is there whole, old or new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make what was written to a file, or the renames in a folder, last."""
    if os.name == "nt":
        return  # Windows opens no folders, and flushes no file that is only read
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_all(folder: Path) -> None:
    """Make everything below a folder last; what another process moves meanwhile is its own to sync."""
    for path in (*folder.rglob("*"), folder):
        with suppress(FileNotFoundError):
            sync(path)
