"""Whether a party is well, for whoever restarts it: a container's health check, a timer, a person."""

import shutil
import time
from pathlib import Path

from coterie.deploy.flower.programs import is_served
from coterie.deploy.home import ALIVE

STALE = 120.0  # seconds without a sign that all is well
LEAST = 100_000_000  # bytes that must be free on the disk


def ailment(folder: Path) -> str:
    """What is wrong with a party's service; empty: nothing."""
    if not is_served(folder):
        return "its service is not running"
    alive = folder / ALIVE
    if not alive.exists() or time.time() - alive.stat().st_mtime > STALE:
        return f"not connected, or not all of its programs run, for over {STALE:.0f} s; see logs/service.log"
    if (free := shutil.disk_usage(folder).free) < LEAST:
        return f"{free / 1e6:.0f} MB are free on its disk; {LEAST / 1e6:.0f} must be"
    return ""
