"""Which Coterie this is."""

import os
import subprocess
from pathlib import Path

VERSION = "0.1.0"


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
