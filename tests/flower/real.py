"""A federation of real Flower processes on this machine."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from coterie.assembly import Assembly
from coterie.data import catalog
from coterie.data.silo import Silo
from coterie.engine.flower.home import free_port
from coterie.engine.flower.own import own_silo, save_silo
from coterie.engine.training import Training
from coterie.methods import make
from coterie.models import build

COMMAND = [sys.executable, "-m", "coterie"]
MODEL = {"name": "mlp", "hidden": [8]}
TRAIN = {"rounds": 3, "local_epochs": 2, "batch_size": 16, "lr": 0.1, "measure_every": 3}

really = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("COTERIE_REAL"), reason="real Flower processes: set COTERIE_REAL=1"),
]
nginx = pytest.mark.skipif(
    shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin") is None, reason="needs Debian's nginx"
)


def coterie(*words: str, timeout: float = 120, check: bool = True) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=timeout, env=environment())
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


class Party:
    """One `coterie coordinator` or `coterie silo`."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.words = folder, words
        self.log = folder.parent / f"{folder.name}.log"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*COMMAND, *self.words], stdout=log, stderr=log, env=environment())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def said(self) -> str:
        return self.log.read_text()

    def program(self, name: str) -> int:
        """The number of one of its programs' process."""
        return int(json.loads((self.folder / "state" / "programs.json").read_text())[name])


class Real:
    """Coordinator and silos, running."""

    def __init__(self, folder: Path, silos: list[Silo], proxy: bool) -> None:
        self.folder, self.names = folder, [silo.name for silo in silos]
        port = free_port()
        front = "--proxy" if proxy else "--no-proxy"
        coterie("federation", "new", str(folder), "--silos", ",".join(self.names), "--port", str(port), front)
        for silo in silos:
            save_silo(silo, folder / "silos" / silo.name / "data.npz")
        self.coordinator = Party(folder / "coordinator", "coordinator", str(folder / "coordinator"))
        self.silos = {name: self.silo(name) for name in self.names}

    def silo(self, name: str) -> Party:
        home = self.folder / "silos" / name
        return Party(home, "silo", str(home), "--device", "cpu")

    def started(self) -> None:
        """Wait until every silo is connected."""
        until = time.monotonic() + 120
        while time.monotonic() < until:
            states = coterie("federation", "status", str(self.folder), check=False).stdout
            if states.count("online") >= len(self.silos):
                return
            time.sleep(2)
        raise AssertionError(states + self.coordinator.said() + "".join(s.said() for s in self.silos.values()))

    def study(self, methods: list[str], **train: object) -> Path:
        from coterie import toml

        table = {"name": "real", "seeds": [1], "model": MODEL, "train": TRAIN | train}
        path = self.folder / "study.toml"
        path.write_text(toml.dumps(table | {"methods": {name: {} for name in methods}}))
        return path

    def run(self, study: Path, timeout: float = 600) -> tuple[Path, str]:
        """A run to its end: its folder, and what was shown."""
        done = coterie("federation", "run", str(self.folder), str(study), timeout=timeout)
        return self.latest(), done.stdout

    def begin(self, study: Path) -> subprocess.Popen[str]:
        """A run under way."""
        words = [*COMMAND, "federation", "run", str(self.folder), str(study)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())

    def latest(self) -> Path:
        return max((self.folder / "coordinator" / "runs").iterdir(), key=lambda path: path.stat().st_mtime)

    def progress(self) -> dict:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.latest() / "progress.json").read_text())
        return {}

    def stop(self) -> None:
        for party in [*self.silos.values(), self.coordinator]:
            if party.process.poll() is None:
                party.process.send_signal(signal.SIGTERM)
        for party in [*self.silos.values(), self.coordinator]:
            party.process.wait(40)


@contextmanager
def real(folder: Path, silos: list[Silo], proxy: bool = False) -> Iterator[Real]:
    made = Real(folder, silos, proxy)
    try:
        made.started()
        yield made
    finally:
        made.stop()


def digits(names: list[str]) -> list[Silo]:
    """Shares of the embedded digits under these names."""
    dealt = catalog.load("digits", {"name": "digits"}, 0).silos
    return [Silo(name, s.train, s.validation, s.test) for name, s in zip(names, dealt, strict=False)]


def simulated(fed: Real, methods: list[str], **train: object) -> pd.Series:
    """What a simulation gives the same silos."""
    silos = [own_silo(name, fed.folder / "silos" / name / "data.npz")[0] for name in sorted(fed.names)]
    factory, _ = build(MODEL, silos[0].train.x.shape[1:], 10)
    parts = []
    for name in methods:
        outcome = Assembly(silos, factory, 10, Training(**(TRAIN | train)), 1, "cpu", 1).train(make(name, {}))
        parts.append(pd.concat(outcome.results).assign(method=name))
    return by_silo(pd.concat(parts))


def by_silo(results: pd.DataFrame) -> pd.Series:
    return results.set_index(["method", "round", "silo", "split", "measure"])["value"].sort_index()


def when(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def processes_of(session: int, word: str) -> list[int]:
    """Processes of a session whose command has this word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                same = int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session
                if same and word in (entry / "cmdline").read_bytes().decode(errors="replace"):
                    found.append(int(entry.name))
    return found
