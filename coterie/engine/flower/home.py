"""A party's folder, for programs that must stay small: nothing here imports PyTorch or Flower."""

import json
import socket
from pathlib import Path
from typing import Any

from coterie.durable import sync as sync
from coterie.durable import write_whole as write_whole
from coterie.errors import BadInput

LOOPBACK = "127.0.0.1"
EVENTS = "events.log"  # in a silo's folder: what it answered and refused
COORDINATOR = "COTERIE_COORDINATOR"  # the environment variable that names the coordinator's folder


def settings(folder: Path) -> dict[str, Any]:
    """A party's settings, as `coterie federation new` wrote them."""
    path = folder / "settings.json"
    try:
        table: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return table
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; give a folder that `coterie federation new` made") from None
    except ValueError as error:
        raise BadInput(f"{path}: damaged ({error}); take it from the folder that the coordinator sent") from None


def nodes(folder: Path) -> dict[str, int]:
    """The registered silos' nodes by name, at the coordinator."""
    path = folder / "state" / "nodes.json"
    return {str(k): int(v) for k, v in json.loads(path.read_text("utf-8")).items()} if path.exists() else {}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
