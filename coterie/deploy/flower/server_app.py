"""The coordinator's Flower app: runs a study that `coterie federation run` left in a folder."""

import json
import os
import tomllib
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.deploy.drive import RemoteRun, study_of
from coterie.deploy.flower.allowance import FILE, grant
from coterie.deploy.flower.grid import GridTransport
from coterie.deploy.flower.pace import hurry
from coterie.deploy.home import COORDINATOR, nodes, note_progress, owner_only
from coterie.deploy.operators import Signed
from coterie.deploy.patience import Patience
from coterie.errors import BadInput
from coterie.lock import locked
from coterie.options import parse


@owner_only()
def main(grid: Grid, context: Context) -> None:
    """Run the study, from its checkpoint if it has one."""
    hurry()
    coordinator = Path(os.environ[COORDINATOR])
    folder = coordinator / "runs" / Path(str(context.run_config["run"])).name
    with locked(folder / ".lock"):  # a process that Flower took for dead may still be ending
        note_progress(folder, pid=os.getpid(), state="gathering")
        try:
            asked = json.loads((folder / "asked.json").read_text("utf-8"))
            table = tomllib.loads((folder / "asked.toml").read_text("utf-8"))
            study = study_of(table, asked["methods"], asked.get("tune", False))  # before, nothing was searched for
            patience = parse(Patience, asked["patience"], "patience")
            transport = GridTransport(
                grid,
                lambda: nodes(coordinator),
                lambda silos: note_progress(folder, waiting=silos),
                partial(grant, coordinator / FILE),
            )
            by = Signed(transport, asked.get("operator", {}))
            RemoteRun(folder, study, by, lambda: sorted(nodes(coordinator)), patience).run(asked["command"])
        except BadInput as error:
            note_progress(folder, state="failed", reason=str(error))


app = ServerApp()
app.main()(main)
