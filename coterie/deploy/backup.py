"""A party's folder in one file, and back: every file by its hash; keys under a passphrase, or not at all.

What the party can make again is left out: logs, which may quote rows, Flower's database, which is filled again from
`members/`, and data.
"""

import base64
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

from coterie.deploy.home import SOURCE, json_table, owner_only, settings
from coterie.durable import sync_all
from coterie.errors import BadInput
from coterie.lock import locked
from coterie.version import build

ABOUT, KEYS = "backup.json", "keys.encrypted"  # in the file, beside the folder's own
FORMAT = 1
SECRETS = ("ca.key", "server.key", "key", "group.key", "state/secret")
LEFT_OUT = (  # in any party's folder
    "logs/*", "flower/*", "nginx/*", "events.log*", "data.npz", "*.part", "*.lock", "state/.service", "state/alive",
    "state/programs.json", "state/superlink.db*", "state/allowed.json", "state/nodes/*",
    "state/data.*", "state/examined.json", "state/secret.*",
)  # fmt: skip
WORK = 2**15  # of scrypt: some 0.1 s and 32 MiB for each guess at a passphrase
Passphrase = Callable[[], str]


@owner_only()
def back_up(folder: Path, target: Path, passphrase: Passphrase | None = None) -> list[str]:
    """Write a party's folder to one file; the keys that are not in it. Refused while a run goes on."""
    own = settings(folder)
    if target.exists():
        raise BadInput(f"{target}: exists already; give another file")
    locked_with = passphrase() if passphrase is not None else None
    if locked_with == "":
        raise BadInput("a passphrase without a character protects no keys; give one, or leave --keys out")
    beside = target.with_name(target.name + ".part")
    try:
        with _at_rest(folder):
            paths = _files(folder)
            keys = [name for name in SECRETS if name in paths]
            hashes = dict[str, str]()
            with zipfile.ZipFile(beside, "w") as archive:
                for name in sorted(paths.keys() - set(keys)):
                    with paths[name].open("rb") as file, archive.open(f"files/{name}", "w", force_zip64=True) as entry:
                        hashes[name] = _copied(file, entry)
                about = {"format": FORMAT, "party": own.get("name", "coordinator"), "coterie": build(), "files": hashes}
                about |= {"time": datetime.now(UTC).isoformat(timespec="seconds"), "keys": keys}
                written = json.dumps(about, indent=1)
                archive.writestr(ABOUT, written)
                if locked_with is not None:
                    content = {name: base64.b64encode(paths[name].read_bytes()).decode() for name in keys}
                    content[ABOUT] = _digest(written.encode())  # so nobody without the passphrase can change the files
                    archive.writestr(KEYS, _encrypted(json.dumps(content).encode(), locked_with))
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    beside.replace(target)
    return [] if locked_with is not None else keys


@owner_only()
def restore(source: Path, folder: Path, kind: str, passphrase: Passphrase) -> tuple[str, list[str]]:
    """A party's folder again, only whole: when it was backed up, and the keys that are missing."""
    if folder.exists():
        raise BadInput(f"{folder}: exists already and is not overwritten; give another folder, or move it away")
    beside = folder.with_name(folder.name + ".part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with zipfile.ZipFile(source) as archive:
            about = _about(archive, source)
            party = "coordinator" if about["party"] == "coordinator" else "silo"
            if party != kind:
                raise BadInput(f"{source}: the backup of a {party}, and here a {kind}'s is wanted")
            beside.mkdir(parents=True)
            for name, digest in about["files"].items():
                _extract(archive, name, digest, beside, source)
            kept = KEYS in archive.namelist() and (given := passphrase())
            keys = json.loads(_decrypted(archive.read(KEYS), given, source)) if kept else {}
            if kept and keys.get(ABOUT, _digest(archive.read(ABOUT))) != _digest(archive.read(ABOUT)):
                raise BadInput(f"{source}: its files were changed by somebody after its keys were encrypted")
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"{source}: no backup, or damaged ({error})") from None
    for name in SECRETS:
        if name in keys:
            path = beside / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(base64.b64decode(keys[name]))
    sync_all(beside)
    beside.replace(folder)
    return str(about["time"]), [name for name in about["keys"] if name not in keys]


@contextmanager
def _at_rest(folder: Path) -> Iterator[None]:
    """Nobody changes what belongs together meanwhile: a silo between two answers, a coordinator without a run."""
    runs = [path.parent for path in (folder / "runs").glob("*/asked.json")]
    with ExitStack() as held:
        held.enter_context(locked(folder / ".lock"))  # a silo's, while it answers
        for run in runs:
            if not held.enter_context(locked(run / ".lock", wait=False)):
                raise BadInput(f"run {run.name} is under way; back up when it has ended, or stop it with Ctrl-C")
        yield


def _files(folder: Path) -> dict[str, Path]:
    """What is backed up, by its name in the folder."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    source = folder / SOURCE
    data = Path(str(json_table(source, "start the silo again").get("path"))) if source.exists() else None
    return {
        name: path
        for name, path in found.items()
        if not path.is_symlink()
        and data not in (path.resolve(), *path.resolve().parents)
        and not any(fnmatch(name, pattern) for pattern in LEFT_OUT)
    }


def _copied(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy a file, read once; its hash."""
    total = hashlib.sha256()
    while piece := source.read(1 << 20):
        total.update(piece)
        target.write(piece)
    return total.hexdigest()


def _about(archive: zipfile.ZipFile, source: Path) -> dict[str, Any]:
    """What the file says of itself, checked: no name in it leads out of the folder."""
    about: dict[str, Any] = json.loads(archive.read(ABOUT))
    if about["format"] != FORMAT:
        raise BadInput(f"{source}: of another form ({about['format']}); restore it with coterie {about['coterie']}")
    for name in about["files"]:
        if {"", ".", ".."} & {*name.split("/")} or "\\" in name or not name.isprintable():
            raise ValueError(f"a file {name[:60]!r}")
    return about


def _extract(archive: zipfile.ZipFile, name: str, digest: str, folder: Path, source: Path) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(f"files/{name}") as entry, path.open("wb") as file:
        if _copied(entry, file) != digest:
            raise BadInput(f"{source}: damaged: {name} is not what was backed up; take another backup")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _encrypted(content: bytes, passphrase: str) -> bytes:
    from cryptography.fernet import Fernet

    salt = os.urandom(16)
    return salt + Fernet(_derived(passphrase, salt)).encrypt(content)


def _decrypted(content: bytes, passphrase: str, source: Path) -> bytes:
    from cryptography.fernet import Fernet, InvalidToken

    try:
        return Fernet(_derived(passphrase, content[:16])).decrypt(content[16:])
    except InvalidToken:
        raise BadInput(f"{source}: its keys have another passphrase, or are damaged") from None


def _derived(passphrase: str, salt: bytes) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return base64.urlsafe_b64encode(Scrypt(salt=salt, length=32, n=WORK, r=8, p=1).derive(passphrase.encode()))
