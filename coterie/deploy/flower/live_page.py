"""The live page of a federation between real silos: that of a run, and the silos beside it. Served to this machine."""

import json
import time
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coterie.deploy.drive import study_of
from coterie.deploy.flower.monitoring import Figures, SiloSeen, figures, newest_run, reply
from coterie.deploy.flower.same_account import is_own
from coterie.deploy.home import LOOPBACK, json_table, progress
from coterie.errors import BadInput
from coterie.measure.measures import shown_score
from coterie.report.decision import size
from coterie.report.html import cell, table
from coterie.report.live import BODY, Live, written
from coterie.runs.folder import COLUMNS, Begun
from coterie.runs.read import Run, read_run, so_far

SILOS = "<section><h2>Silos</h2><div id='silos'></div></section>"
AGES = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}  # seconds


class FederationLive(Live):
    """Serves what a coordinator knows of its silos and of its newest run."""

    body = SILOS + BODY

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether who connects has this account: others of the machine may not read which silos there are."""
        return is_own(client_address, (LOOPBACK, self.server_port))

    def read(self) -> Run:
        """The newest run, as far as it is."""
        run = newest_run(self.folder)
        if run is None:
            return Run(self.title(), {}, DataFrame(columns=COLUMNS), finished=False)
        return read_run(run) if (run / "summary.json").exists() else so_far(run, _begun(run))

    def title(self) -> str:
        """The federation's folder."""
        return self.folder.resolve().parent.name

    def status(self, run: Run) -> str:
        """The newest run in a few sentences; a finished one with its verdict."""
        found, newest = figures(self.folder), newest_run(self.folder)
        if newest is None:
            return "No run has been asked for yet."
        sent = f"{size(found.bytes_up)} up, {size(found.bytes_down)} down"
        rejected = f"{found.rejected} upload{'s' * (found.rejected != 1)} rejected"
        after = f" {super().status(run)}" if run.finished else ""
        if found.state == "failed":
            after = f" Why: {progress(newest).get('reason')}."
        return f"{found.run}: {', '.join(_stage(found))}. {sent}, {rejected}.{after}"

    def version(self) -> str:
        """Changes whenever the newest run has written, or another one is asked for."""
        run = newest_run(self.folder)
        if run is None:
            return "none"
        news = {key: value for key, value in progress(run).items() if key not in ("time", "waiting")}
        return sha256(f"{run} {written(run)} {json.dumps(news)}".encode()).hexdigest()[:16]

    def always(self) -> dict[str, str]:
        """The silos: how they are connected, when they were last heard of, what they did when last asked."""
        run = newest_run(self.folder)
        news = {} if run is None else progress(run)
        silos = figures(self.folder).silos
        rows = {
            name: cell(seen.state) + cell(_ago(seen)) + cell(reply(news, name), words=True)
            for name, seen in silos.items()
        }
        online = f"<p>{sum(seen.state == 'online' for seen in silos.values())} of {len(silos)} are online.</p>"
        return {"silos": online + table(["silo", "connection", "last contact", "this round"], rows, words="this round")}


def _begun(run: Path) -> Begun:
    """A run that the coordinator has begun, as one that was begun here."""
    try:
        asked = json_table(run / "asked.json", "ask for the run again")
        study = study_of(tomllib.loads((run / "asked.toml").read_text("utf-8")), asked["methods"], asked["tune"])
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{run}: what was asked cannot be read ({error!r:.200}); ask for the run again") from None
    return Begun(study.as_toml(), str(asked.get("command", "")))


def _stage(found: Figures) -> list[str]:
    """What the newest run does now."""
    parts = [found.state or "asked"]
    if found.method:
        parts += [found.method, f"seed {found.seed}", f"round {found.round} of {found.rounds}"]
    return [*parts, shown_score(found.measure, found.score)] if found.score is not None and found.measure else parts


def _ago(seen: SiloSeen) -> str:
    """How long ago a silo was last heard of, in the largest unit of which that is one at least."""
    if seen.contact is None:
        return "never"
    seconds = max(time.time() - seen.contact, 0.0)
    unit = next((unit for unit, length in reversed(AGES.items()) if seconds >= length), "s")
    return f"{int(seconds / AGES[unit])} {unit} ago"
