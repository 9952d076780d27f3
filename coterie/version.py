"""Which Coterie this is."""

import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

VERSION = "0.1.0"
SHOWN = 16  # digits of a build's hash


@cache
def build() -> str:
    """The version and a hash of the source files that this process runs, which differs for every commit of a version.

    Found once: files may be replaced while a process runs what it has imported.
    """
    return f"{VERSION}+{digest(Path(__file__).parent)[:SHOWN]}"


def digest(package: Path) -> str:
    """A hash of a package's source files, by name and content."""
    total = hashlib.sha256()
    for name, path in sorted((path.relative_to(package).as_posix(), path) for path in package.rglob("*.py")):
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def commit(package: Path = Path(__file__).parent) -> str | None:
    """The commit of the checkout that the package is run from, `-dirty` where it was changed since; None: of none.

    A copy that was made without its history is given it in `COTERIE_COMMIT`.
    """
    if given := os.environ.get("COTERIE_COMMIT"):
        return given
    try:
        _git(package, "ls-files", "--error-unmatch", "version.py")  # not a checkout of something else around it
        return _git(package, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()
