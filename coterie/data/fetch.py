"""A data set from its publisher."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from coterie.data import cache
from coterie.data.centres import CENTRES, how_to_get
from coterie.data.download import Failed, download
from coterie.data.importing import import_set
from coterie.data.sources import BY_HAND, SOURCES, File, matches
from coterie.errors import BadInput, refused

Watch = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all where that is known


def fetch(name: str, watch: Watch, pause: Callable[[float], Any] = time.sleep) -> Path:
    """Download what is missing of a set; returns its folder."""
    if name in BY_HAND:
        raise BadInput(f"data set {name}: {BY_HAND[name]}")
    if name in CENTRES and CENTRES[name].package:
        raise BadInput(f"data set {name}: {how_to_get(name)}")
    if name not in SOURCES:
        raise BadInput(f"data set {name}: there is nothing to fetch")
    files = SOURCES[name]
    folder, downloads = cache.folder(name), cache.root() / "downloads"
    if any(file.archive for file in files) and cache.place(name) is not None:
        return folder
    for file in files:
        target = (downloads if file.archive else folder) / file.name
        try:
            with refused(target, "make room there, or name another folder in COTERIE_DATA"):
                if not (target.is_file() and matches(target, file.checksum)):
                    download(file, target, partial(watch, file.name), pause)
        except Failed as error:
            raise BadInput(_by_hand(name, files, folder, str(error))) from None
        if file.archive:
            import_set(name, target)
            target.unlink()
    return folder


def _by_hand(name: str, files: tuple[File, ...], folder: Path, why: str) -> str:
    wanted = ", ".join(f"{file.name} ({file.urls[-1]}, {file.checksum})" for file in files)
    if any(file.archive for file in files):
        return (
            f"data set {name} could not be fetched: {why}. By hand: get {wanted} and run "
            f"`coterie data import {name} {files[0].name}`"
        )
    return f"data set {name} could not be fetched: {why}. By hand: put into {folder} the files {wanted}"
