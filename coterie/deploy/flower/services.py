"""Starts Flower's programs for a party, starts them again when they die, and ends them with it."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from coterie.deploy.certificates import expiry
from coterie.deploy.flower import commands
from coterie.deploy.flower.members import Members
from coterie.deploy.flower.monitoring import figures, silo_figures
from coterie.deploy.flower.programs import Program, await_port, end_left_over, only_one, remember, running
from coterie.deploy.flower.prometheus import of_coordinator, of_silo, served
from coterie.deploy.flower.same_account import check_accounts
from coterie.deploy.flower.watchdog import Watchdog
from coterie.deploy.greeting import greet
from coterie.deploy.home import (
    ALIVE,
    COORDINATOR,
    EVENTS,
    LOOPBACK,
    SILO,
    SOURCE,
    close_folder,
    free_port,
    is_loopback,
    owner_only,
    proxy_of,
    settings,
    write_node,
    write_whole,
)
from coterie.deploy.logs import Follower, Form, Say, service_log
from coterie.errors import BadInput
from coterie.version import build

LEAST_ROOM = 1 << 20  # bytes; a ledger's line and a small model are less
WARN_SECONDS = 24 * 3600  # between two warnings that the certificate expires
CONNECTED_SECONDS = 20  # a SuperNode that runs so long was let in
FAILURES = 5  # starts in a row that end at once
# After an unclean end Flower takes a silo for connected for a while, and a coordinator that has just started registers
# one key after another.
REFUSED_SECONDS = 180


@owner_only()
def coordinator(folder: Path, form: Form = "plain", metrics: int | None = None, shared_ok: bool = False) -> None:
    """Run a federation's coordinator until it is stopped; `form` is that of its log, `metrics` a port on loopback."""
    commands.check_version()
    check_accounts(shared_ok)
    folder = folder.resolve()
    own = settings(folder, inner=int, proxy=bool)
    log = service_log(folder, "coordinator", form, sys.stdout)
    with log as say, served(metrics, lambda: of_coordinator(figures(folder)), say):
        _coordinate(folder, own, say)


def _coordinate(folder: Path, own: dict[str, Any], say: Say) -> None:
    home, inner, ca = folder / "flower", own["inner"], _ca(folder, own)
    commands.write_home(home, LOOPBACK, inner, ca)
    env = _guarded(folder, commands.environment(home, **{COORDINATOR: str(folder)}), "superlink")
    logs, members = folder / "logs", Members(folder, home, say)
    programs = [Program("SuperLink", commands.superlink(folder, LOOPBACK, inner, ca), env, logs / "superlink.log")]
    programs += [Program("SuperExec", commands.superexec(LOOPBACK, inner, ca), env, logs / "superexec.log")]
    if own["proxy"]:
        (folder / "nginx").mkdir(exist_ok=True)
        arguments = ["nginx", "-p", str(folder), "-c", "nginx.conf", "-e", "logs/nginx.log"]
        programs += [Program("nginx", arguments, env, logs / "nginx.log")]
    with only_one(folder / "state", "coordinator"):
        end_left_over(folder)
        close_folder(folder)
        commands.shrink(folder / commands.DATABASE)
        with running(programs):
            for program in programs:
                program.start()
                remember(folder, programs)
                if program.name == "SuperLink":
                    await_port(program, inner)
            say(f"coordinator at {own['host']}:{own['port']}, coterie {build()}; Ctrl-C stops it")
            certificate, warned = _stamp(folder), 0.0
            while True:
                if time.monotonic() - warned > WARN_SECONDS or not warned:
                    warned = time.monotonic()
                    if remark := expiry(folder):
                        say(remark)
                if _stamp(folder) != certificate:
                    certificate = _stamp(folder)
                    say("the certificate was renewed: SuperLink and nginx take it up")
                    for program in programs:
                        if program.name != "SuperExec":
                            program.stop()
                if _revived(folder, programs, say):
                    (folder / ALIVE).touch()
                if ca is not None:
                    members.align()
                time.sleep(1)


def _revived(folder: Path, programs: list[Program], say: Say) -> bool:
    """Start again what has ended; whether all were running before."""
    ended = [program for program in programs if program.ended() is not None]
    for program in ended:
        say(f"{program.name} ended ({program.ended()}) and is started again; see {program.log}")
        time.sleep(1)
        program.start()
        remember(folder, programs)
    for program in programs:
        program.rotate()
    return not ended


@owner_only()
def silo(folder: Path, source: str, form: Form = "plain", metrics: int | None = None, shared_ok: bool = False) -> None:
    """Run a silo until it is stopped; `source` is where its data are and on which device it trains, as JSON."""
    commands.check_version()
    check_accounts(shared_ok)
    folder = folder.resolve()
    own = settings(folder, name=str)
    log = service_log(folder, own["name"], form, sys.stdout)
    with log as say, served(metrics, lambda: of_silo(silo_figures(folder)), say):
        _take_part(folder, own, source, say)


def _take_part(folder: Path, own: dict[str, Any], source: str, say: Say) -> None:
    looked, ca = _looked(folder, source), _ca(folder, own)
    address = f"{own['host']}:{own['port']}"
    proxy = proxy_of(folder, own["host"]) if ca is not None else ""
    env = commands.environment(folder / "flower", **{SILO: str(folder)}, **commands.through(proxy))
    env = _guarded(folder, env, "supernode", "superexec")
    with only_one(folder / "state", f"silo {own['name']}"):
        end_left_over(folder)
        close_folder(folder)
        write_whole(folder / SOURCE, source.encode())
        for remark in looked["remarks"]:  # before anything leaves
            say(remark)
        say(f"silo {own['name']}: {looked['samples']} training samples, coterie {build()}; connecting to {address}")
        refused, failures = time.monotonic(), 0
        events, known, room = Follower(folder / EVENTS), folder / "state" / "connected", True
        while True:
            greet(own["host"], own["port"], ca, say, proxy)
            arguments = commands.supernode(address, free_port(), ca, folder / "key")
            program = Program("SuperNode", arguments, env, folder / "logs/supernode.log")
            began = time.monotonic()
            with running([program]):
                program.start()
                remember(folder, [program])
                watchdog = Watchdog(program)
                introduced = ca is not None  # a silo with a key is known by it
                while program.ended() is None:
                    time.sleep(0.5)
                    for line in events.new():
                        say(line)
                    program.rotate()
                    room = _has_room(folder, room, say)
                    introduced = introduced or _introduced(folder, own, program)
                    if watchdog.wedged():
                        say(f"{program.name} holds a message that no process works on: it is stopped")
                        break
                    if time.monotonic() - began > CONNECTED_SECONDS:
                        refused = time.monotonic()
                        known.touch()
                        (folder / ALIVE).touch()
            _judge_end(program, refused, known.exists(), say)
            failures = failures + 1 if time.monotonic() - began < CONNECTED_SECONDS else 0
            if failures > FAILURES and commands.exit_code(program.logged()) is None:
                last = (program.logged().splitlines() or ["nothing was logged"])[-1]
                raise BadInput(f"{program.name} ended {failures} times as soon as it was started: {last}")
            time.sleep(5)


def _has_room(folder: Path, had: bool, say: Say) -> bool:
    """Whether the silo's disk has room for its notes; it is reported once that changes."""
    has = shutil.disk_usage(folder).free >= LEAST_ROOM
    if has != had:
        say("its disk has room again" if has else f"its disk is full: nothing is answered until {folder} has room")
    return has


def _ca(folder: Path, own: dict[str, object]) -> Path | None:
    """The federation's CA; None in one without TLS and keys."""
    if not own.get("insecure"):
        return folder / "ca.crt"
    if not is_loopback(str(own["host"])):
        raise BadInput(f"{folder / 'settings.json'}: insecure is for this machine alone, not for {own['host']}")
    return None


def _stamp(folder: Path) -> int | None:
    """When the coordinator's certificate was written; None where there is none."""
    path = folder / "server.pem"
    return path.stat().st_mtime_ns if path.exists() else None


def _guarded(folder: Path, env: dict[str, str], *names: str) -> dict[str, str]:
    """An environment in which our programs stand before Flower's of these names."""
    guard = commands.write_guard(folder / "flower" / "guard", *names)
    return env | {"PATH": f"{guard}{os.pathsep}{env['PATH']}"}


def _introduced(folder: Path, own: dict[str, str], program: Program) -> bool:
    """Without keys nothing ties a node to a silo's name, so the silo writes it down, on this very machine."""
    number = commands.node_number(program.logged())
    if number is None:
        return False
    there = folder / own["coordinator"]
    if not there.is_dir():
        raise BadInput(f"{there}: no such folder; a silo made with --insecure stays where its federation was made")
    write_node(there, own["name"], number)
    return True


def _looked(folder: Path, source: str) -> dict[str, Any]:
    """What is found of policy and data before anything is asked of them, in a process that ends with its imports."""
    arguments = [sys.executable, "-m", "coterie.deploy.look", str(folder), source]
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        raise BadInput((done.stderr.splitlines() or ["the silo's folder could not be read"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _judge_end(program: Program, since: float, known: bool, say: Say) -> None:
    """Why a SuperNode ended: worth another try, or for a person to read."""
    code = commands.exit_code(program.logged())
    if code == commands.VERSION_DIFFERS:
        raise BadInput("the coordinator runs another version of Flower; install the same coterie[flower] as it has")
    if code != commands.CANNOT_CONNECT:
        say(f"{program.name} ended ({program.ended()}) and is started again; see {program.log}")
        return
    # Flower gives one answer to an unknown key and to a silo that it still takes for connected.
    why = (
        "another process is connected with it, or it is no longer registered" if known else "it is not registered there"
    )
    if time.monotonic() - since > REFUSED_SECONDS:
        raise BadInput(f"the coordinator refuses this silo's key: {why}; ask the coordinator")
    say("not accepted yet; trying again")
