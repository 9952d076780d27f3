"""A federation of real Flower processes on this machine."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest

from coterie.data import catalog
from coterie.data.silo import Silo
from coterie.deploy.home import free_port
from coterie.deploy.own import own_silo, save_silo
from coterie.engine.training import Training
from coterie.methods import make
from coterie.models import build
from coterie.run.assembly import Assembly

COMMAND = [sys.executable, "-m", "coterie"]
MODEL = {"name": "mlp", "hidden": [8]}
TRAIN = {"rounds": 3, "local_epochs": 2, "batch_size": 16, "lr": 0.1, "measure_every": 3}

# What a script starts in the background ignores Ctrl-C, and so would every program that these tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
NGINX = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin") is not None
really = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("COTERIE_REAL"), reason="real Flower processes: set COTERIE_REAL=1"),
]


def coterie(
    *words: str, timeout: float = 240, check: bool = True, within: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """One command to its end; `within` are words before it that say in which network."""
    every = [*within, *COMMAND, *words]
    done = subprocess.run(every, capture_output=True, text=True, timeout=timeout, env=environment())
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def offline() -> Iterator[list[str]]:
    """A network that is this machine alone, as words to put before a command; none where that is not to be had."""
    held = "unshare --map-root-user --net sh -c 'ip link set lo up && echo up && exec sleep infinity'"
    with subprocess.Popen(["sh", "-c", f"exec {held}"], stdout=subprocess.PIPE, text=True) as holder:
        try:
            if holder.stdout.readline() != "up\n":
                warnings.warn("no network namespace here: that silos need no internet is not shown", stacklevel=1)
                yield []
                return
            yield ["nsenter", f"--target={holder.pid}", "--user", "--net", "--preserve-credentials"]
        finally:
            holder.kill()


class Party:
    """One `coterie coordinator` or `coterie silo`."""

    def __init__(self, folder: Path, *words: str, within: Sequence[str] = (), **env: str) -> None:
        self.folder, self.words, self.within, self.env = folder, words, within, env
        self.log = folder.parent / f"{folder.name}.log"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.within, *COMMAND, *self.words], stdout=log, stderr=log, env=environment() | self.env
            )

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def said(self) -> str:
        return self.log.read_text()

    def program(self, name: str) -> int:
        """The number of one of its programs' process."""
        return int(json.loads((self.folder / "state" / "programs.json").read_text())[name])


class Real:
    """Coordinator and silos, running; `tables` has the words by which silos are told of theirs."""

    def __init__(
        self,
        folder: Path,
        silos: Sequence[Silo] = (),
        proxy: bool = False,
        insecure: bool = False,
        tables: Mapping[str, Sequence[str]] | None = None,
        within: Sequence[str] = (),
        own_keys: bool = False,
    ) -> None:
        self.tables, self.within = tables or {}, within
        self.folder, self.names = folder, [*(silo.name for silo in silos), *self.tables]
        front, port = ["--proxy"] if proxy else ["--insecure"] if insecure else ["--no-proxy"], str(free_port())
        words = [] if own_keys else ["--silos", ",".join(self.names)]
        coterie("federation", "new", str(folder), *words, "--port", port, *front)
        for home in (folder / "silos" / name for name in self.names if own_keys):
            where = ["--coordinator", f"127.0.0.1:{port}", "--ca", str(folder / "coordinator" / "ca.crt")]
            coterie("silo", "init", str(home), *where)
            coterie("federation", "enroll", str(folder), str(home / "key.pub"))
        for silo in silos:
            save_silo(silo, folder / "silos" / silo.name / "data.npz")
        self.coordinator = Party(folder / "coordinator", "coordinator", str(folder / "coordinator"), within=within)
        self.silos = {name: self.silo(name) for name in self.names}

    def silo(self, name: str, **env: str) -> Party:
        home = self.folder / "silos" / name
        words = ["silo", str(home), "--device", "cpu", *self.tables.get(name, ())]
        return Party(home, *words, within=self.within, **env)

    def added(self, silo: Silo, **env: str) -> Party:
        """One more silo, running."""
        coterie("federation", "add", str(self.folder), silo.name)
        save_silo(silo, self.folder / "silos" / silo.name / "data.npz")
        self.silos[silo.name] = self.silo(silo.name, **env)
        self.started()
        return self.silos[silo.name]

    def gone(self, name: str) -> None:
        """End a silo for good."""
        self.silos.pop(name).stop()

    def started(self) -> None:
        """Wait until every silo is connected."""
        until = time.monotonic() + 240
        while time.monotonic() < until:
            states = coterie("federation", "status", str(self.folder), check=False, within=self.within).stdout
            if states.count("online") >= len(self.silos):
                return
            time.sleep(1)
        raise AssertionError(states + self.coordinator.said() + "".join(s.said() for s in self.silos.values()))

    def study(self, methods: list[str], model: Mapping[str, object] | None = None, **train: object) -> Path:
        from coterie import toml

        table = {"name": "real", "seeds": [1], "model": dict(model or MODEL), "train": TRAIN | train}
        path = self.folder / "study.toml"
        path.write_text(toml.dumps(table | {"methods": {name: {} for name in methods}}))
        return path

    def words(self, study: Path) -> list[str]:
        """To run a study with the silos that are connected: nobody waits for those that tests have left behind."""
        return ["federation", "run", str(self.folder), str(study), "--gather", "0"]

    def run(self, study: Path, timeout: float = 900) -> tuple[Path, str]:
        """A run to its end: its folder, and what was shown."""
        done = coterie(*self.words(study), timeout=timeout, within=self.within)
        return self.latest(), done.stdout

    def begin(self, study: Path) -> subprocess.Popen[str]:
        """A run under way."""
        before = self.latest()
        words = [*COMMAND, *self.words(study)]
        begun = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
        when(lambda: self.latest() != before, 120)
        return begun

    def latest(self) -> Path | None:
        runs = self.folder / "coordinator" / "runs"
        return max(runs.iterdir(), key=lambda path: path.stat().st_ctime, default=None) if runs.exists() else None

    def progress(self) -> dict:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return json.loads((self.latest() / "progress.json").read_text())
        return {}

    def stop(self) -> None:
        for party in [*self.silos.values(), self.coordinator]:
            if party.process.poll() is None:
                party.process.send_signal(signal.SIGTERM)
        for party in [*self.silos.values(), self.coordinator]:
            party.process.wait(40)


def digits(names: list[str]) -> list[Silo]:
    """Shares of the embedded digits under these names."""
    dealt = catalog.load("digits", {"name": "digits"}, 0).silos
    return [Silo(name, s.train, s.validation, s.test) for name, s in zip(names, dealt, strict=False)]


def simulated(
    fed: Real,
    methods: list[str],
    model: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    **train: object,
) -> pd.Series:
    """What a simulation gives the same silos."""
    silos = [own_silo(name, fed.folder / "silos" / name / "data.npz")[0] for name in sorted(fed.names)]
    factory, _ = build(model or MODEL, silos[0].train.x.shape[1:], 10)
    parts = []
    for name in methods:
        assembly = Assembly(silos, factory, 10, Training(**(TRAIN | train)), 1, "cpu", 1)
        outcome = assembly.train(make(name, options or {}))
        parts.append(pd.concat(outcome.results).assign(method=name))
    return by_silo(pd.concat(parts))


def by_silo(results: pd.DataFrame) -> pd.Series:
    # A deployed silo also reports the measures that a simulation takes of its predictions.
    common = results["measure"].str.fullmatch(r"(loss|accuracy|rmse|mae|r2)(_cloud)?(_unseen)?")
    return results[common].set_index(["method", "round", "silo", "split", "measure"])["value"].sort_index()


def when(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def processes_of(session: int, name: str) -> list[int]:
    """Processes of a session by their name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                same = int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session
                if same and (entry / "comm").read_text().strip() == name:
                    found.append(int(entry.name))
    return found
