"""Flower's own programs and their options, all in this file: they change with every minor version."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from coterie.deploy.home import LOOPBACK
from coterie.errors import BadInput

FLOWER = "1.41"
CONNECTION = "coterie"  # the name of the coordinator's SuperLink in Flower's own configuration
CANNOT_CONNECT = 305  # SuperNode: the SuperLink does not take it
VERSION_DIFFERS = 606
REFUSED = 1000  # of an error in place of an answer, beside Flower's own codes: the silo's door dropped the request
UNREGISTERED = "unregistered"
ONLINE, OFFLINE = "online", "offline"
HEARTBEATS = 2  # that a node may miss
UNKNOWN = "unknown"  # a run that is not in the database
RUNS_LISTED = 100  # the newest
DATABASE = "state/superlink.db"  # the SuperLink's, in the coordinator's folder
TRAINING = "flwr-clientapp"  # the name of the process that answers a message at a silo
STUB = "stub"
STUB_FILES = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "coterie-stub"
version = "1.0.0"
description = "Calls the coterie that each party has installed"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "stub.server:app"
clientapp = "stub.client:app"

[tool.flwr.app.config]
run = ""
""",
    "stub/__init__.py": "",
    "stub/server.py": "from coterie.deploy.flower.server_app import app\n\n__all__ = ['app']\n",
    "stub/client.py": "from coterie.deploy.flower.client_app import app\n\n__all__ = ['app']\n",
}


def check_version() -> None:
    """Refuse a Flower whose inner parts, which a party's programs replace in places, may be others."""
    found = version("flwr")
    if not found.startswith(f"{FLOWER}."):
        raise BadInput(f"this coterie needs Flower {FLOWER}, found {found}; install coterie[flower]")


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's programs: a home of their own, no telemetry, no look for updates."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    polls = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}
    # A party's programs reach each other on this machine, whichever proxy its environment names for others.
    known = os.environ.get("NO_PROXY", os.environ.get("no_proxy", ""))
    direct = dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join([*filter(None, [known]), LOOPBACK, "localhost"]))
    return {**os.environ, "PATH": programs, "FLWR_HOME": str(home), **quiet, **polls, **direct, **more}


def through(proxy: str) -> dict[str, str]:
    """The environment of a SuperNode whose coordinator is behind a proxy; Flower's calls are HTTPS by httpx."""
    return {"HTTPS_PROXY": proxy, "https_proxy": proxy} if proxy else {}


def superlink(folder: Path, host: str, port: int, ca: Path | None) -> list[str]:
    """The SuperLink, which keeps everything in a database: it survives its own end; without a CA no TLS, no keys."""
    tls = ["--ssl-ca-certfile", str(ca), "--ssl-certfile", str(folder / "server.pem")]
    tls += ["--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]
    return [
        "flower-superlink",
        *("--host", host, "--port", str(port)),
        *(["--insecure"] if ca is None else tls),
        *("--database", str(folder / DATABASE)),
        *("--isolation", "process", "--disable-runtime-dependency-installation"),
    ]


def superexec(host: str, port: int, ca: Path | None) -> list[str]:
    """The SuperExec, which starts the server's part of a run."""
    return ["flower-superexec", *_trust(ca), "--runtime-api-address", f"{host}:{port}"]


def supernode(address: str, port: int, ca: Path | None, key: Path) -> list[str]:
    """A silo's SuperNode."""
    return [
        "flower-supernode",
        *_trust(ca),
        *([] if ca is None else ("--auth-supernode-private-key", str(key))),
        *("--superlink", address, "--port", str(port)),
    ]


def _trust(ca: Path | None) -> list[str]:
    return ["--insecure"] if ca is None else ["--root-certificates", str(ca)]


def write_home(home: Path, host: str, port: int, ca: Path | None) -> None:
    """Flower's configuration and the stub, for the coordinator's own commands."""
    (home / STUB).mkdir(parents=True, exist_ok=True)
    table = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{host}:{port}"\n'
    trust = "insecure = true" if ca is None else f"root-certificates = {json.dumps(str(ca))}"
    (home / "config.toml").write_text(f"{table}{trust}\n", "utf-8")
    for name, text in STUB_FILES.items():
        path = home / STUB / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def write_guard(folder: Path, *names: str) -> Path:
    """Programs that stand before Flower's of these names on a party's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = folder / f"flower-{name}"
        path.write_text(f"#!{sys.executable}\nfrom coterie.deploy.flower.{name} import main\nmain()\n", "utf-8")
        path.chmod(0o755)
    return folder


def register(home: Path, key: Path) -> int | None:
    """Register a silo's public key; its node's number, or None where the SuperLink does not answer."""
    reply = _reply(home, ["supernode", "register", str(key), CONNECTION])
    return int(reply["node-id"]) if reply is not None and reply.get("success") else None


def unregister(home: Path, node: int) -> bool:
    """Have the SuperLink refuse a node from now on; its key is never taken again. Whether it does."""
    reply = _reply(home, ["supernode", "unregister", str(node), CONNECTION])
    return bool(reply and reply.get("success"))


def key_of(path: Path) -> bytes:
    """A public key as the SuperLink keeps it, from a file in ssh's form."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    return load_ssh_public_key(path.read_bytes()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def known_keys(database: Path) -> dict[bytes, tuple[int, str]] | None:
    """By public key, the number and the state of every node that was ever registered; None while there is no telling.

    Read from the database itself: Flower's command line does not print which key is whose.
    """
    rows = _nodes(database, "public_key, status")
    return None if rows is None else {bytes(key): (node, str(status)) for node, key, status in rows}


def contacts(database: Path) -> dict[int, tuple[str, float | None]] | None:
    """By node, its state and when it was last heard of, in seconds since 1970; None while there is no telling.

    A heartbeat puts `online_until` that many intervals into the future, a farewell into the present; what Flower has
    not yet noticed to be offline by that time is.
    """
    rows = _nodes(database, "status, online_until, heartbeat_interval")
    if rows is None:
        return None
    found = dict[int, tuple[str, float | None]]()
    for node, status, until, interval in rows:
        if status == ONLINE and until is not None:
            found[node] = (ONLINE, until - HEARTBEATS * interval) if until > time.time() else (OFFLINE, until)
        else:
            found[node] = (str(status), until)
    return found


def _nodes(database: Path, columns: str) -> list[tuple[Any, ...]] | None:
    """The number of every node and these columns of it; None where the database cannot be read."""
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as opened:
            rows = opened.execute(f"SELECT node_id, {columns} FROM node").fetchall()
    except sqlite3.Error:
        return None
    return [(number % 2**64, *more) for number, *more in rows]  # SQLite's integers have a sign


def shrink(database: Path) -> None:
    """Give back the room of what the SuperLink has deleted; only while it does not run."""
    if database.exists():
        with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as opened:
            opened.execute("VACUUM")


def start_run(home: Path, run: str) -> str:
    """Start a run; Flower's number of it."""
    reply = _reply(home, ["run", str(home / STUB), CONNECTION, "--run-config", f'run="{run}"'])
    if reply is None or not reply.get("success"):
        raise BadInput(f"Flower did not start the run: {(reply or {}).get('error-message', 'no answer')}")
    return str(reply["run-id"])


def run_status(home: Path, run: str) -> str | None:
    """pending, starting, running, finished:… or unknown; None where the SuperLink does not answer."""
    reply = _reply(home, ["list", CONNECTION, "--limit", str(RUNS_LISTED)])
    if reply is None or not reply.get("success"):
        return None
    return next((str(each["status"]) for each in reply["runs"] if each["run-id"] == run), UNKNOWN)


def stop_run(home: Path, run: str) -> None:
    """Stop a run."""
    _reply(home, ["stop", run, CONNECTION])


def node_number(log: str) -> int | None:
    """The number of a SuperNode that was let in."""
    found = re.findall(r"SuperNode ID: (\d+)", log)
    return int(found[-1]) if found else None


class Unanswered:
    """By run, how many messages a SuperNode has yet to answer, going by its log.

    It sends whichever reply comes first, be that an old run's, and then looks for the next message.
    """

    def __init__(self) -> None:
        self.run, self.messages = "", Counter[str]()

    def after(self, log: str) -> bool:
        """Whether there is any after these further lines."""
        for run, received in re.findall(r"\[RUN (\d+)|(Received successfully)|Sending: ", log):
            if run:
                self.run = run
            else:
                self.messages[self.run] = max(0, self.messages[self.run] + (1 if received else -1))
        return any(self.messages.values())


def exit_code(log: str) -> int | None:
    """Flower's own exit code, which its programs log: to the system they all end with 1."""
    found = re.findall(r"Exit Code: (\d+)", log)
    return int(found[-1]) if found else None


def _reply(home: Path, arguments: list[str]) -> dict[str, Any] | None:
    """The JSON that Flower's command line prints; None where it prints none."""
    env = environment(home)
    program = shutil.which("flwr", path=env["PATH"])  # Debian's own Python has its programs in another folder
    if program is None:
        raise BadInput("flwr is not installed; see docs/deployment.md")
    command = [program, *arguments, "--format", "json"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        start = done.stdout.find("{")
        reply: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    return reply or None
