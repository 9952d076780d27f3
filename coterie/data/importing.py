"""A data set from files that are already on disk, in the form its publisher or somebody else gave them."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.data import cache, catalog
from coterie.data.archives import Member, members
from coterie.data.images import SUFFIXES, read_images
from coterie.data.leaf import read_leaf
from coterie.data.silo import Array
from coterie.data.sources import BESIDE, FORMS, SOURCES, SPEECHES, matches, published
from coterie.errors import BadInput, refused

LARGEST = 4 << 30  # bytes of one file
PICKLED = {"cifar10": "data_batch_1", "cifar100": "train"}  # of the "python version", which is pickles


@dataclass(frozen=True)
class Imported:
    """A set that is now in the cache."""

    folder: Path
    samples: int
    verified: bool  # by its publisher's checksums


def import_set(name: str, path: Path) -> Imported:
    """Copy a set's files into the cache, once they have been read and make sense."""
    if name not in FORMS:
        raise BadInput(f"data set {name}: it needs no files, so there is nothing to import")
    target = cache.folder(name)
    with refused(target.parent, "name a folder that can be written in COTERIE_DATA"):
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        _gather(name, path, made)
        samples = len(catalog.read(name, {"path": str(made)}))
        official = [file for file in SOURCES.get(name, ()) if file.archive and file.name == path.name]
        verified = any(path.is_file() and matches(path, file.checksum) for file in official) or all(
            published(name, file) for file in made.iterdir() if file.name not in BESIDE.get(name, ())
        )
        _replace(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Imported(target, samples, verified)


def _gather(name: str, path: Path, made: Path) -> None:
    """Put the set's files into the folder `made`."""
    with members(path) as found:
        chosen = _official(name, found, path)
        if chosen:
            for file, member in chosen.items():
                _copy(member, made / file)
            return
        leaf = [member for member in found if member.name.suffix == ".json"]
        if name == "femnist" and leaf:
            return _save(made / "femnist.npz", read_leaf(leaf))
        if name != "shakespeare" and any(member.name.suffix.lower() in SUFFIXES for member in found):
            shape = catalog.CATALOG[name].shape
            return _save(made / f"{name}.npz", read_images(found, shape[0] if shape else None, path))
        names = {member.name.name for member in found}
    if PICKLED.get(name) in names:
        raise BadInput(f"{path}: is the Python version, which is pickles and never loaded; get the binary version")
    wanted = " and ".join(FORMS[name][0])
    others = "" if name == "shakespeare" else ", an .npz archive, or images in a folder for each class"
    raise BadInput(f"{path}: nothing of {name} is there; expected {wanted} (or gzipped){others}")


def _official(name: str, found: Sequence[Member], path: Path) -> dict[str, Member]:
    """The members that make up one form of the set, by the name a loader looks for."""
    single = found[0] if len(found) == 1 else None
    if single is not None and name == "shakespeare" and single.name.suffix in (".txt", ""):
        return {SPEECHES: single}
    archives = [member for member in found if member.name.suffix == ".npz"]
    if len(archives) == 1 and (f"{name}.npz",) in FORMS[name]:
        return {f"{name}.npz": archives[0]}
    for form in FORMS[name]:
        chosen = {}
        for file in form:
            member = _nearest(file, found, path) or _nearest(f"{file}.gz", found, path)
            if member is not None:
                chosen[member.name.name] = member
        if len(chosen) == len(form):
            beside = {file: _nearest(file, found, path) for file in BESIDE.get(name, ())}
            return chosen | {file: member for file, member in beside.items() if member is not None}
    return {}


def _nearest(file: str, found: Sequence[Member], path: Path) -> Member | None:
    """The member of that name, in whatever folder; of several the one least deep."""
    named = sorted((m for m in found if m.name.name == file), key=lambda m: len(m.name.parts))
    if len(named) > 1 and len(named[0].name.parts) == len(named[1].name.parts):
        raise BadInput(f"{path}: holds {named[0].name} and {named[1].name}; give the folder of the one you mean")
    return named[0] if named else None


def _copy(member: Member, target: Path) -> None:
    if member.size > LARGEST:
        raise BadInput(f"{member.name}: claims {member.size} bytes, more than the limit of {LARGEST}; get it again")
    with member.open() as source, target.open("wb") as out:
        shutil.copyfileobj(source, out)  # no more than it claims comes out of an archive
    if missing := member.size - target.stat().st_size:
        raise BadInput(f"{member.name}: ends {missing} bytes early; get it again")


def _save(target: Path, arrays: Mapping[str, Array]) -> None:
    np.savez_compressed(target, **arrays)  # type: ignore[arg-type]


def _replace(made: Path, target: Path) -> None:
    """Put a finished folder in the place of an older one, which is whole until then."""
    old = made.with_name(f"{made.name}-old")
    try:
        with refused(target, "remove it and try again"):
            made.chmod(0o755)
            with suppress(FileNotFoundError):
                target.rename(old)
            made.rename(target)
    finally:
        shutil.rmtree(old, ignore_errors=True)
