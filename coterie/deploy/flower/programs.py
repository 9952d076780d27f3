"""A party's programs: started with a log each, remembered, and ended with the service that started them."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.deploy.home import LOOPBACK, json_table, write_whole
from coterie.deploy.logs import rotate
from coterie.errors import BadInput
from coterie.lock import locked

STOP_SECONDS = 8  # that a program has to end by itself
START_SECONDS = 60
PROCESSES = Path("/proc")  # Linux has it
LOCK = ".service"  # in a party's state: held while its service runs


class Program:
    """One of Flower's programs, or nginx, with its log."""

    def __init__(self, name: str, arguments: list[str], env: dict[str, str], log: Path) -> None:
        self.name, self.arguments, self.env, self.log = name, arguments, env, log
        self.process: subprocess.Popen[bytes] | None = None
        self.before = 0  # where in the log its latest start is

    def start(self) -> None:
        """Start it; it gets a session of its own, so that Ctrl-C reaches us first."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        program = shutil.which(self.arguments[0], path=self.env["PATH"] + os.pathsep + "/usr/sbin")
        if program is None:
            raise BadInput(f"{self.arguments[0]} is not installed; see docs/deployment.md")
        with self.log.open("ab") as log:
            self.before = log.tell()
            self.process = subprocess.Popen(
                [program, *self.arguments[1:]], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
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

    def rotate(self) -> None:
        """Move its log on once that is large."""
        if rotate(self.log):
            self.before = 0

    def logged(self) -> str:
        """What it has logged since its latest start."""
        return self.log.read_bytes()[self.before :].decode(errors="replace") if self.log.exists() else ""


@contextmanager
def running(programs: list[Program]) -> Iterator[None]:
    """Whatever happens, nothing is left running."""
    try:
        yield
    finally:
        for program in reversed(programs):
            program.stop()


def end_left_over(folder: Path) -> None:
    """End programs that a service killed outright has left behind."""
    path = folder / "state" / "programs.json"
    if not path.exists():
        return
    for pid in json_table(path, "remove it").values():
        if not isinstance(pid, int) or pid < 2:
            continue
        with contextlib.suppress(OSError, ProcessLookupError):
            command = (PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace")
            if str(folder) in command:  # the number may be another program's by now
                os.killpg(pid, signal.SIGKILL)
    path.unlink()


def await_port(program: Program, port: int) -> None:
    """Wait until a program listens on its port."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if program.ended() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1):
            return
        time.sleep(0.2)
    raise BadInput(f"{program.name} did not start; see {program.log}: {(program.logged().splitlines() or [''])[-1]}")


def remember(folder: Path, programs: list[Program]) -> None:
    """Note the processes of a party's programs, for a service that comes after this one was killed."""
    pids = {program.name: program.process.pid for program in programs if program.process is not None}
    write_whole(folder / "state" / "programs.json", json.dumps(pids).encode())


def in_session(leader: int, name: str) -> bool:
    """Whether a process of that name is alive in the session of another; assumed where there is no /proc."""
    if not PROCESSES.exists():
        return True
    for entry in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z" and (entry / "comm").read_text().strip() == name:
                return True
    return False


@contextmanager
def only_one(folder: Path, what: str) -> Iterator[None]:
    """Two services of one folder would end each other's programs."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, wait=False) as mine:
        if not mine:
            raise BadInput(f"{what} is running already")
        yield


def is_served(folder: Path) -> bool:
    """Whether a service of this folder is running."""
    path = folder / "state" / LOCK
    if not path.exists():
        return False
    with locked(path, wait=False) as free:
        return not free
