"""A party's `service/` folder: what runs it as a service of systemd, or in a container."""

import os
import shutil
import sys
from importlib.resources import files
from pathlib import Path

from coterie.version import VERSION

FOLDER = "service"
NOBODY = 10001  # the account of a container whose folder was made by root
NGINX = "RUN apt-get update && apt-get install --yes --no-install-recommends nginx && rm -rf /var/lib/apt/lists/*\n"


def write_service(folder: Path, party: str, port: int = 0) -> None:
    """The files for a coordinator (`port`: the one that silos reach) or, by its name, for a silo."""
    silo, target = not port, folder.resolve() / FOLDER
    kind = "silo" if silo else "coordinator"
    unit = f"coterie-{party}.service"
    health = ["silo", "health", "/silo"] if silo else ["federation", "health", "/fed"]
    values = {
        "WHAT": f"Coterie silo {party}" if silo else "Coterie coordinator",
        "NAME": party,
        "UNIT": unit,
        "FOLDER": str(target.parent),
        "GIVEN": str(target.parent if silo else target.parent.parent),  # nobody else may enter a federation's folder
        "PROGRAM": _program(),
        "COMMAND": kind,
        "PACKAGES": "" if silo else NGINX,
        "VERSION": VERSION,
        "INSIDE": "/silo" if silo else "/fed/coordinator",
        "HEALTH": ", ".join(f'"{word}"' for word in health),
        "USER": f"{os.getuid()}:{os.getgid()}" if os.getuid() else f"{NOBODY}:{NOBODY}",
        "PORT": str(port),
    }
    target.mkdir()
    written = {unit: "coterie.service", "options": f"options.{kind}", "Dockerfile": "Dockerfile"}
    written |= {"compose.yaml": f"compose.{kind}.yaml", "requirements-deploy.txt": "requirements-deploy.txt"}
    for name, template in written.items():
        text = files("coterie.deploy").joinpath(FOLDER, template).read_text("utf-8")
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        (target / name).write_text(text, "utf-8")


def _program() -> str:
    """The command as this machine has it installed."""
    beside = Path(sys.executable).with_name("coterie")
    return str(beside) if beside.exists() else shutil.which("coterie") or "/usr/local/bin/coterie"
