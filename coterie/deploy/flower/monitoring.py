"""What monitoring shows of a federation: figures gathered from the files that its parties keep, without PyTorch."""

import math
import shutil
import time
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.deploy.flower import commands
from coterie.deploy.flower.programs import is_served
from coterie.deploy.home import ALIVE, EVENTS, PROGRESS, json_table, nodes, settings
from coterie.errors import BadInput
from coterie.measure.gaussian import gaussian_epsilon

SILENT = 60.0  # seconds after which a silo is named that was asked and has not answered
STALE = 120.0  # seconds without a sign that all is well, after which a service is not
LEAST = 100_000_000  # bytes that must be free on the disk
DAY = 86400.0  # seconds
DELTA = 1e-5  # a policy's, where it names none


@dataclass(frozen=True)
class SiloSeen:
    """One silo, as the coordinator sees it."""

    state: str  # online, offline, registered, unregistered, not registered yet; unknown: the database cannot be read
    contact: float | None = None  # when it was last heard of, in seconds since 1970
    silent: bool = False  # it was asked over a minute ago, and has not answered


@dataclass(frozen=True)
class Figures:
    """A federation, as its coordinator sees it: the newest run, the silos, the machine."""

    silos: dict[str, SiloSeen]
    free: int  # bytes of the disk that holds its folder
    certificate: float | None = None  # when it expires, in seconds since 1970
    run: str = ""
    state: str = ""
    method: str = ""
    seed: int = 0
    round: int = 0
    rounds: int = 0
    score: float | None = None
    measure: str = ""
    bytes_up: int = 0  # of uploads, over the whole run
    bytes_down: int = 0
    rejected: int = 0  # uploads that did not count, over the whole run
    epsilon: float | None = None  # what the run has spent, once it has ended with privacy


def figures(coordinator: Path) -> Figures:
    """All figures of a coordinator's folder, whatever of it can be read."""
    latest = newest_run(coordinator)
    news, summary = _table(latest, PROGRESS), _table(latest, "summary.json")
    waiting, privacy = silent(news), summary.get("privacy")
    kept = {name: news[name] for name in ("state", "method", "measure") if isinstance(news.get(name), str)}
    kept |= {name: int(news.get(name) or 0) for name in ("seed", "round", "rounds", "bytes_up", "bytes_down")}
    return Figures(
        silos={name: SiloSeen(*each, silent=name in waiting) for name, each in contacts(coordinator).items()},
        free=shutil.disk_usage(coordinator).free,
        certificate=_expires(coordinator / "server.pem"),
        run="" if latest is None else latest.name,
        score=news.get("score"),
        rejected=int(news.get("rejected") or 0),
        epsilon=privacy.get("epsilon") if isinstance(privacy, dict) else None,
        **kept,
    )


@dataclass(frozen=True)
class SiloFigures:
    """A silo, as it sees itself."""

    name: str
    connected: bool  # whether its SuperNode has been let in and runs
    contact: float | None  # when it last answered or refused, in seconds since 1970
    answers: int  # about its data, over all runs
    refused: int  # in its events.log
    epsilon: float | None  # what all uploads have spent; infinite once one left without noise; None: noise of records
    free: int  # bytes of the disk that holds its folder
    certificate: float | None  # when the federation's CA expires, in seconds since 1970


def silo_figures(folder: Path) -> SiloFigures:
    """All figures of a silo's folder."""
    spent, events = _table(folder, "spent.json"), folder / EVENTS
    lines = events.read_bytes().splitlines() if events.exists() else []
    return SiloFigures(
        name=str(settings(folder, name=str)["name"]),
        connected=time.time() - _touched(folder / ALIVE) < SILENT,
        contact=_touched(events) or None,
        answers=int(spent.get("answers", 0)),
        refused=sum(b" refused" in line[:40] for line in lines),
        epsilon=_epsilon(spent, _delta(folder)),
        free=shutil.disk_usage(folder).free,
        certificate=_expires(folder / "ca.crt"),
    )


def running_coordinator(folder: Path) -> Path:
    """The coordinator's folder of a federation whose coordinator runs on this machine."""
    coordinator = (folder / "coordinator").resolve()
    settings(coordinator)
    if not is_served(coordinator):
        raise BadInput(f"the coordinator is not running; start it with `coterie coordinator {folder / 'coordinator'}`")
    return coordinator


def ailment(folder: Path) -> str:
    """What is wrong with a party's service, for whoever restarts it; empty: nothing."""
    if not is_served(folder):
        return "its service is not running"
    if time.time() - _touched(folder / ALIVE) > STALE:
        return f"not connected, or not all of its programs run, for over {STALE:.0f} s; see logs/service.log"
    if (free := shutil.disk_usage(folder).free) < LEAST:
        return f"{free / 1e6:.0f} MB are free on its disk; {LEAST / 1e6:.0f} must be"
    return ""


def silo_states(coordinator: Path) -> dict[str, str]:
    """Every silo: online, offline, registered, not registered yet."""
    return {name: state for name, (state, _) in contacts(coordinator).items()}


def newest_run(coordinator: Path) -> Path | None:
    """The run that was asked for last."""
    runs = sorted((coordinator / "runs").glob("*/asked.toml"), key=lambda path: path.stat().st_mtime)
    return runs[-1].parent if runs else None


def silent(news: Mapping[str, Any]) -> list[str]:
    """Who was asked long ago; `time` is when somebody last answered."""
    return list(news.get("waiting", [])) if time.time() - news.get("time", time.time()) > SILENT else []


def reply(news: Mapping[str, Any], name: str) -> str:
    """What a silo did when it was last asked, empty where it was not, and its uploads that did not count."""
    why = news.get("absent", {}).get(name) or news.get("silos", {}).get(name)
    replied = f"missing: {why}" if why else "replied" if name in news.get("silos", {}) else ""
    if name in news.get("waiting", []):
        replied = "no answer yet" if silent(news) else "asked …"
    rejected = news.get("rejected_by_silo", {}).get(name, 0)
    return f"{replied}; {rejected} upload{'s' * (rejected != 1)} rejected" if rejected else replied


def contacts(coordinator: Path) -> dict[str, tuple[str, float | None]]:
    """By silo, its state and when it was last heard of."""
    known, found = nodes(coordinator), commands.contacts(coordinator / commands.DATABASE)
    names = [path.stem for path in sorted((coordinator / "members").glob("*"))]
    if found is None:
        return dict.fromkeys(names, ("unknown", None))
    missing = ("not registered yet", None)
    return {name: found.get(known[name], missing) if name in known else missing for name in names}


def _table(folder: Path | None, name: str) -> dict[str, Any]:
    """A JSON file of a folder; empty where it is not there, or is just being written."""
    with suppress(BadInput):
        return {} if folder is None else json_table(folder / name, "")
    return {}


def _touched(path: Path) -> float:
    """When a file was last written, in seconds since 1970; 0 where there is none."""
    return path.stat().st_mtime if path.exists() else 0.0


def _expires(certificate: Path) -> float | None:
    if not certificate.exists():
        return None
    from coterie.deploy.certificates import days_left

    return time.time() + DAY * days_left(certificate)


def _epsilon(spent: Mapping[str, Any], delta: float) -> float | None:
    """ε for all data of the silo; that of single records takes an accountant, which a service does not load."""
    if int(spent.get("bare", 0)):
        return math.inf
    return None if spent.get("steps") else gaussian_epsilon(float(spent.get("squares", 0)), delta)


def _delta(folder: Path) -> float:
    """The δ of a silo's policy, read without all that a policy is checked against."""
    with suppress(OSError, ValueError):
        return float(tomllib.loads((folder / "silo.toml").read_text("utf-8")).get("delta", DELTA))
    return DELTA
