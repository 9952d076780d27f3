"""`coterie federation run`: hands a study to the coordinator, watches it, and starts it again where it broke."""

import hashlib
import json
import time
from collections.abc import Callable
from datetime import datetime
from getpass import getpass
from pathlib import Path
from typing import Any

from coterie import toml
from coterie.deploy.drive import study_of
from coterie.deploy.flower import commands
from coterie.deploy.flower.monitoring import running_coordinator
from coterie.deploy.home import PROGRESS, owner_only, progress, write_whole
from coterie.deploy.operators import signed
from coterie.deploy.patience import Patience
from coterie.errors import BadInput
from coterie.options import resolved
from coterie.personal.export import file_name

RESTARTS = 20  # of the coordinator's app in one run
START = 60.0  # seconds in which Flower must take a run
LOOK = 1.0  # seconds between two looks at a run's progress
LONGEST = 40  # characters of a study's name in that of a run
ASK = 10.0  # seconds without news, until Flower is asked whether the app still runs


@owner_only()
def ask_run(
    folder: Path,
    table: dict[str, Any],
    methods: list[str] | None,
    patience: Patience,
    command: str,
    tune: bool = True,
    operator: Path | None = None,
) -> Path:
    """A new run's folder, with what was asked, signed with the operator's key where one is given."""
    study = study_of(table, methods, tune)
    coordinator = running_coordinator(folder)
    # Silos name files by runs: methods and seeds follow, which must not be cut off, and dots have a meaning there.
    name = file_name(study.name).replace(".", "-")[:LONGEST]
    run = coordinator / "runs" / f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    text = toml.dumps({key: value for key, value in table.items() if key != "data"})
    digest = hashlib.sha256(json.dumps([text, methods, tune]).encode()).hexdigest()
    by = {} if operator is None else signed(operator, run.name, digest, lambda: getpass(f"password of {operator}: "))
    run.mkdir(parents=True)
    (run / "asked.toml").write_text(text, "utf-8")
    asked = {"methods": methods, "command": command, "patience": resolved(patience), "tune": tune, "operator": by}
    (run / "asked.json").write_text(json.dumps(asked), "utf-8")
    return run


@owner_only()
def follow(run: Path, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Start or resume a run and watch it to its end; its last progress."""
    home = run.parent.parent / "flower"
    write_whole(run / PROGRESS, json.dumps(progress(run) | {"state": "starting", "restarts": 0}).encode())
    number = _started(home, run.name)
    asked, restarts, news = time.monotonic(), 0, dict[str, Any]()
    try:
        while True:
            before, news = news, progress(run)
            asked = time.monotonic() if news != before else asked
            show(news | {"restarts": restarts})
            if news.get("state") == "finished":
                return news
            if news.get("state") == "failed":
                raise BadInput(str(news.get("reason")))
            if time.monotonic() - asked > ASK:
                asked = time.monotonic()
                status = commands.run_status(home, number)
                if status == commands.UNKNOWN:
                    raise BadInput(
                        f"Flower no longer knows this run: superlink.db was lost; go on with --resume {run.name}"
                    )
                ended = status is not None and status.startswith("finished")
                if ended and progress(run).get("state") not in ("finished", "failed"):
                    restarts += 1
                    if restarts > RESTARTS:
                        raise BadInput(f"the run broke {restarts} times; see {home.parent / 'logs'}")
                    number = _started(home, run.name)
            time.sleep(LOOK)
    except KeyboardInterrupt:
        commands.stop_run(home, number)
        raise


def _started(home: Path, run: str) -> str:
    """Flower's number of a run; a SuperLink that is just being started again gets its time."""
    until = time.monotonic() + START
    while True:
        try:
            return commands.start_run(home, run)
        except BadInput:
            if time.monotonic() > until:
                raise
            time.sleep(3)
