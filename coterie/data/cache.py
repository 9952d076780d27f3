"""Where the files of data sets are kept, and whether they are there."""

import os
import sys
from pathlib import Path

from coterie.data.sources import FORMS

DEBIAN = Path("/usr/share/datasets")  # where Debian's packages dataset-… put theirs


def root() -> Path:
    """The folder of all sets: `COTERIE_DATA`, or one in the platform's cache folder."""
    chosen = os.environ.get("COTERIE_DATA")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        caches = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        caches = "~/Library/Caches"
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "coterie"


def folder(name: str) -> Path:
    """The folder of one set."""
    return root() / name


def place(name: str) -> Path | None:
    """The folder a set's files are in, where they all are."""
    for candidate in (folder(name), DEBIAN / name):
        if any(all(_there(candidate / file) for file in form) for form in FORMS.get(name, ())):
            return candidate
    return None


def _there(path: Path) -> bool:
    try:
        return path.is_file() or path.with_name(f"{path.name}.gz").is_file()
    except OSError:
        return False
