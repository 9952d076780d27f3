"""A party's folder, for programs that must stay small: nothing here imports PyTorch or Flower."""

import ipaddress
import json
import os
import re
import socket
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

from coterie.durable import sync as sync
from coterie.durable import write_whole as write_whole
from coterie.errors import BadInput, refused

LOOPBACK = "127.0.0.1"
EVENTS = "events.log"  # in a silo's folder: what it answered and refused
NODES = "state/nodes"  # in the coordinator's folder: by silo, the number of its node
COORDINATOR = "COTERIE_COORDINATOR"  # the environment variable that names the coordinator's folder
SILO = "COTERIE_SILO"  # and the one that names a silo's
PROGRESS = "progress.json"  # in a run's folder, at the coordinator: how far it is
ALIVE = "state/alive"  # in a party's folder: touched by its service while all is well
LARGEST_DOWNLOAD = 1 << 30  # bytes of one request, unless a silo's policy has another number
SOURCE = "state/source.json"  # in a silo's folder: where its data are, and on which device it trains


@contextmanager
def owner_only() -> Iterator[None]:
    """What this process and those it starts write meanwhile, only their owner may read, whatever the umask was."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def close_folder(folder: Path) -> None:
    """Take from all others whatever rights they had to a party's folder and what is in it."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            with suppress(FileNotFoundError):  # a program may just be ending
                path.chmod(path.stat().st_mode & 0o700)


def check_account(folder: Path) -> None:
    """Refuse root where a party's service runs under another account, which could not read what root writes."""
    state = folder / "state"
    if os.name == "posix" and os.geteuid() == 0 and state.exists() and (number := state.stat().st_uid):
        try:
            name = state.owner()
        except KeyError:  # of a container
            name = f"#{number}"
        raise BadInput(
            f"{folder}: its service runs under the account {name}, which could not read what root writes there; "
            f"run this with sudo -u '{name}'"
        )


def settings(folder: Path, **needed: type) -> dict[str, Any]:
    """A party's settings, as `coterie federation new` wrote them; `needed` are more of them than host and port."""
    path = folder / "settings.json"
    table = json_table(path, "give a folder that `coterie federation new` made")
    for key, kind in {"host": str, "port": int, **needed}.items():
        if not isinstance(table.get(key), kind):
            raise BadInput(f"{path}: no '{key}' there; give a folder that `coterie federation new` made for this party")
    return table


def proxy_of(folder: Path, host: str) -> str:
    """The HTTP proxy between a silo and its coordinator: by its silo.toml, else by the environment; empty: none."""
    path = folder / "silo.toml"
    try:
        given = tomllib.loads(path.read_text("utf-8")).get("proxy", "") if path.exists() else ""
    except ValueError as error:
        raise BadInput(f"{path}: not valid TOML: {error}") from None
    if given and not re.fullmatch(r"http://[^\s/]+:\d{1,5}/?", str(given)):
        raise BadInput(f"{path} proxy: give its address as http://proxy.example.org:3128")
    if given or is_loopback(host) or proxy_bypass(host):
        return str(given)
    return getproxies().get("https", "")


def largest_download(folder: Path) -> int:
    """The bytes of one request that a silo takes; where silo.toml cannot be read, which answers none, the default."""
    with suppress(OSError, ValueError):
        given = tomllib.loads((folder / "silo.toml").read_text("utf-8")).get("largest_download")
        if isinstance(given, int) and given > 0:
            return given
    return LARGEST_DOWNLOAD


def json_table(path: Path, remedy: str) -> dict[str, Any]:
    """The table in a JSON file."""
    try:
        with refused(path, remedy):
            read = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: damaged ({error}); {remedy}") from None
    if not isinstance(read, dict):
        raise BadInput(f"{path}: holds no table; {remedy}")
    return read


def progress(run: Path) -> dict[str, Any]:
    """How far a run is; nothing is known where the file is missing or damaged: it is written anew."""
    with suppress(BadInput):
        return json_table(run / PROGRESS, "")
    return {}


def note_progress(run: Path, /, **news: object) -> None:
    """Write what is new of a run to its `progress.json`, and when."""
    write_whole(run / PROGRESS, json.dumps(progress(run) | news | {"time": time.time()}).encode())


def set_aside(path: Path) -> Path:
    """Move a damaged file to a name of its own beside it."""
    other = path.with_name(f"{path.name}.damaged-{datetime.now():%Y%m%d-%H%M%S-%f}")
    path.replace(other)
    return other


def nodes(folder: Path) -> dict[str, int]:
    """The known silos' nodes by name, at the coordinator."""
    found = {path.name: path.read_bytes() for path in (folder / NODES).glob("*") if not path.suffix}
    return {name: int(number) for name, number in found.items() if number.isdigit()}


def write_node(folder: Path, silo: str, number: int) -> None:
    """Note a silo's node, at the coordinator."""
    write_whole(folder / NODES / silo, str(number).encode())


def forget_node(folder: Path, silo: str) -> None:
    """Note that a silo has no node, at the coordinator."""
    (folder / NODES / silo).unlink(missing_ok=True)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
