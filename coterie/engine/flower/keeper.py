"""Starts Flower's programs for a party, starts them again when they die, and ends them with it."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from coterie.engine.flower import commands
from coterie.engine.flower.home import COORDINATOR, EVENTS, LOOPBACK, free_port, nodes, settings, write_whole
from coterie.errors import BadInput

Say = Callable[[str], None]
STOP_SECONDS = 8  # that a program has to end by itself
START_SECONDS = 60
UNKNOWN_KEY_SECONDS = 30  # a coordinator that has just started may not have registered the key yet
CONNECTED_SECONDS = 20  # a SuperNode that runs so long was let in
STILL_ONLINE_SECONDS = 180  # after an unclean end Flower takes the silo for connected for a while
MISTAKES = {
    10: "its certificate has expired; the coordinator must renew it",
    18: "its certificate is not by this federation's CA; is ca.crt the one that came with this folder?",
    19: "its certificate is not by this federation's CA; is ca.crt the one that came with this folder?",
    20: "its certificate is not by this federation's CA; is ca.crt the one that came with this folder?",
    7: "its certificate is not by this federation's CA; is ca.crt the one that came with this folder?",
    62: "its certificate is for another host; is the host in settings.json right?",
    64: "its certificate is for another address; is the host in settings.json right?",
}


class Program:
    """One of Flower's programs, or nginx, with its log."""

    def __init__(self, name: str, words: list[str], env: dict[str, str], log: Path) -> None:
        self.name, self.words, self.env, self.log = name, words, env, log
        self.process: subprocess.Popen[bytes] | None = None
        self.before = 0  # where in the log its latest start is

    def start(self) -> None:
        """Start it; it gets a session of its own, so that Ctrl-C reaches us first."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        program = shutil.which(self.words[0], path=self.env["PATH"] + os.pathsep + "/usr/sbin")
        if program is None:
            raise BadInput(f"{self.words[0]} is not installed; see docs/deployment.md")
        with self.log.open("ab") as log:
            self.before = log.tell()
            self.process = subprocess.Popen(
                [program, *self.words[1:]], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def ended(self) -> int | None:
        """Its exit code once it has ended."""
        return None if self.process is None else self.process.poll()

    def stop(self) -> None:
        """Ask it to end, wait, and end what is left of its session."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        """What it has logged since its latest start."""
        return self.log.read_bytes()[self.before :].decode(errors="replace") if self.log.exists() else ""


def coordinator(folder: Path, say: Say) -> None:
    """Run a federation's coordinator until it is stopped."""
    folder = folder.resolve()
    own = settings(folder)
    home, inner = folder / "flower", own["inner"]
    commands.write_home(home, LOOPBACK, inner, folder / "ca.crt")
    env = commands.environment(home, **{COORDINATOR: str(folder)})
    programs = [Program("SuperLink", commands.superlink(folder, LOOPBACK, inner), env, folder / "logs/superlink.log")]
    programs += [Program("SuperExec", commands.superexec(folder, LOOPBACK, inner), env, folder / "logs/superexec.log")]
    if own["proxy"]:
        (folder / "nginx").mkdir(exist_ok=True)
        words = ["nginx", "-e", str(folder / "logs/nginx.log"), "-c", str(folder / "nginx.conf")]
        programs += [Program("nginx", words, env, folder / "logs/nginx.log")]
    with _only_one(folder / "state", "coordinator"):
        end_left_over(folder)
        with running(programs):
            _remember(folder, programs)
            for program in programs:
                program.start()
                _remember(folder, programs)
                if program.name == "SuperLink":
                    _await_port(program, inner)
            say(f"coordinator at {own['host']}:{own['port']}; Ctrl-C stops it")
            while True:
                for program in programs:
                    if program.ended() is not None:
                        say(f"{program.name} ended ({program.ended()}) and is started again; see {program.log}")
                        time.sleep(1)
                        program.start()
                        _remember(folder, programs)
                _register(folder, home, say)
                time.sleep(1)


def silo(folder: Path, data: Path, device: str, say: Say) -> None:
    """Run a silo until it is stopped."""
    folder, data = folder.resolve(), data.resolve()
    own = settings(folder)
    samples = _looked(folder, data)
    address = f"{own['host']}:{own['port']}"
    guard = commands.write_guard(folder / "flower" / "guard")
    env = commands.environment(folder / "flower")
    env["PATH"] = f"{guard}{os.pathsep}{env['PATH']}"
    config = {"silo": own["name"], "folder": str(folder), "data": str(data), "device": device}
    with _only_one(folder / "state", f"silo {own['name']}"):
        end_left_over(folder)
        say(f"silo {own['name']}: {samples} training samples; connecting to {address}")
        refused = time.monotonic()
        events, known = folder / EVENTS, folder / "state" / "connected"
        seen = events.stat().st_size if events.exists() else 0
        while True:
            greet(own["host"], own["port"], folder / "ca.crt", say)
            words = commands.supernode(folder, address, free_port(), config)
            program = Program("SuperNode", words, env, folder / "logs/supernode.log")
            began = time.monotonic()
            with running([program]):
                program.start()
                _remember(folder, [program])
                while program.ended() is None:
                    time.sleep(0.5)
                    seen = _show(events, seen, say)
                    if time.monotonic() - began > CONNECTED_SECONDS:
                        refused = time.monotonic()
                        known.touch()
            _judge_end(program, refused, known.exists(), say)
            time.sleep(5)


def _looked(folder: Path, data: Path) -> str:
    """Check policy and data before anything is asked of them, in a process that ends with its imports."""
    words = [sys.executable, "-m", "coterie.engine.flower.look", str(folder), str(data)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise BadInput((done.stderr.splitlines() or ["the silo's folder could not be read"])[-1])
    return done.stdout.strip()


def greet(host: str, port: int, ca: Path, say: Say) -> None:
    """Wait until the coordinator can be reached, and refuse one that cannot prove who it is."""
    told = False
    while True:
        try:
            context = ssl.create_default_context(cafile=str(ca))
        except (OSError, ssl.SSLError) as error:
            raise BadInput(f"{ca}: not a certificate ({error}); take it from the folder the coordinator sent") from None
        try:
            with socket.create_connection((host, port), 10) as raw, context.wrap_socket(raw, server_hostname=host):
                return
        except ssl.SSLCertVerificationError as error:
            why = MISTAKES.get(error.verify_code, error.verify_message)
            raise BadInput(f"the coordinator at {host}:{port} cannot be trusted: {why}") from None
        except (OSError, ssl.SSLError) as error:
            if not told:
                say(f"{host}:{port} cannot be reached ({error}); trying again until it can")
            told = True
            time.sleep(3)


@contextmanager
def running(programs: list[Program]) -> Iterator[None]:
    """Whatever happens, nothing is left running."""
    try:
        yield
    finally:
        for program in reversed(programs):
            program.stop()


def end_left_over(folder: Path) -> None:
    """End programs that a keeper killed outright has left behind."""
    path = folder / "state" / "programs.json"
    if not path.exists():
        return
    for pid in json.loads(path.read_text("utf-8")).values():
        with contextlib.suppress(OSError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if str(folder) in words:  # the number may be another program's by now
                os.killpg(pid, signal.SIGKILL)
    path.unlink()


def _judge_end(program: Program, since: float, known: bool, say: Say) -> None:
    """Why a SuperNode ended: worth another try, or for a person to read."""
    code = commands.exit_code(program.said())
    if code == commands.VERSION_DIFFERS:
        raise BadInput("the coordinator runs another version of Flower; install the same coterie[flower] as it has")
    if code != commands.CANNOT_CONNECT:
        say(f"{program.name} ended ({program.ended()}) and is started again; see {program.log}")
        return
    # Flower gives one answer to an unknown key and to a silo that it still takes for connected.
    why = (
        "another process is connected with it, or it is no longer registered" if known else "it is not registered there"
    )
    if time.monotonic() - since > (STILL_ONLINE_SECONDS if known else UNKNOWN_KEY_SECONDS):
        raise BadInput(f"the coordinator refuses this silo's key: {why}; ask the coordinator")
    say("not accepted yet; trying again")


def _show(events: Path, seen: int, say: Say) -> int:
    """Say what the silo's side has written down since."""
    if not events.exists():
        return seen
    with events.open("rb") as file:
        file.seek(seen)
        new = file.read()
    for line in new.decode(errors="replace").splitlines():
        say(line)
    return seen + len(new)


def _register(folder: Path, home: Path, say: Say) -> None:
    """Register the public keys that are new in `members/`."""
    known = nodes(folder)
    for key in sorted((folder / "members").glob("*.pub")):
        if key.stem in known:
            continue
        number = commands.register(home, key)
        if number is not None:
            known[key.stem] = number
            write_whole(folder / "state" / "nodes.json", json.dumps(known, indent=1).encode())
            say(f"registered the key of {key.stem}")


def _await_port(program: Program, port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if program.ended() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1):
            return
        time.sleep(0.2)
    raise BadInput(f"{program.name} did not start; see {program.log}: {(program.said().splitlines() or [''])[-1]}")


def _remember(folder: Path, programs: list[Program]) -> None:
    pids = {program.name: program.process.pid for program in programs if program.process is not None}
    write_whole(folder / "state" / "programs.json", json.dumps(pids).encode())


@contextmanager
def _only_one(folder: Path, what: str) -> Iterator[IO[str]]:
    """Two keepers of one folder would end each other's programs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".keeper").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"{what} is running already") from None
        yield lock


def is_kept(folder: Path) -> bool:
    """Whether a keeper of this folder is running."""
    path = folder / "state" / ".keeper"
    if not path.exists():
        return False
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
