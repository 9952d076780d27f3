"""What an IT department tries before it approves: docs/it.md from its first command on, with real Flower processes.

    python bench/drill.py

Three silos that make their own keys; a key revoked and a certificate renewed during a run; a silo's disk filled and
freed; the coordinator's disk lost in the middle of a run and restored. Nothing is lost, each is reported in words, and
how long each took is printed. Needs nginx, and root to mount a disk of 16 MB (without, no disk is filled).
"""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from coterie import toml
from coterie.deploy.home import free_port
from coterie.deploy.ledger import Ledger
from coterie.deploy.own import save_silo

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "deploy" / "flower"))
from real import COMMAND, Party, coterie, digits, environment, when

NAMES = ("north", "south", "east")
SECRET = "of the drill\n"
ROUNDS, MORE = 30, 12  # of the first run and of the second


@contextlib.contextmanager
def took(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of 16 MB at this folder; False where none may be mounted."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Drill:
    """The federation and its parties."""

    def __init__(self, place: Path) -> None:
        self.place, self.fed, self.port = place, place / "fed", free_port()
        self.parties = dict[str, Party]()
        coterie("federation", "new", str(self.fed), "--host", "127.0.0.1", "--port", str(self.port), "--proxy")

    def join(self, name: str) -> None:
        """A silo's own key, enrolled once both ends have compared fingerprints."""
        home, ca = self.place / "silos" / name, self.fed / "coordinator" / "ca.crt"
        made = coterie("silo", "init", str(home), "--coordinator", f"127.0.0.1:{self.port}", "--ca", str(ca))
        enrolled = coterie("federation", "enroll", str(self.fed), str(home / "key.pub"))
        ours, theirs = (re.findall(r"SHA256:\S+", each.stdout) for each in (made, enrolled))
        assert ours and set(ours) == set(theirs)

    def start(self, *names: str) -> None:
        for name in names or ("coordinator", *NAMES):
            coordinates = name == "coordinator"
            home = self.fed / name if coordinates else self.place / "silos" / name
            arguments = ["coordinator", str(home)] if coordinates else ["silo", str(home), "--device", "cpu"]
            self.parties[name] = Party(home, *arguments)

    def stop(self) -> None:
        for party in self.parties.values():
            if party.process.poll() is None:
                party.process.terminate()
        for party in self.parties.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                party.process.wait(40)

    def online(self, count: int) -> bool:
        time.sleep(1)
        return coterie("federation", "status", str(self.fed), check=False).stdout.count("online") == count

    def heard(self, name: str, words: str, seconds: float = 240) -> None:
        """Wait until a party has printed a line with these words, which is printed here, too."""
        party = self.parties[name]
        when(lambda: words in party.said(), seconds)
        print(f"    {name}: {next(line for line in party.said().splitlines() if words in line)}")

    def begin(self, rounds: int) -> subprocess.Popen[str]:
        """A run under way."""
        train = {"rounds": rounds, "measure_every": rounds, "local_epochs": 1, "batch_size": 16, "lr": 0.1}
        table = {"name": "drill", "seeds": [1], "model": {"name": "mlp", "hidden": [8]}, "train": train}
        path = self.place / "study.toml"
        path.write_text(toml.dumps(table | {"methods": {"scaffold": {}}}))
        arguments = [*COMMAND, "federation", "run", str(self.fed), str(path)]
        pipe = subprocess.PIPE
        return subprocess.Popen(arguments, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment())

    def asks(self, *arguments: str) -> bool:
        """Whether a command that asks for the passphrase of the keys, and for it again, did what it is for."""
        every = [*COMMAND, "federation", *arguments]
        done = subprocess.run(every, input=SECRET * 2, text=True, capture_output=True, env=environment())
        assert done.returncode == 0 or "under way" in done.stderr, done.stdout + done.stderr
        return done.returncode == 0

    def approve(self, *names: str) -> None:
        """Each owner approves the study by its hash, once it is proposed."""
        for name in names:
            home = self.place / "silos" / name
            when(lambda home=home: waiting(home), 240)
            coterie("silo", "approve", str(home), waiting(home)[0])

    def progress(self) -> dict:
        runs = sorted((self.fed / "coordinator" / "runs").glob("*/progress.json"), key=lambda p: p.stat().st_mtime)
        with contextlib.suppress(OSError, ValueError):
            return json.loads(runs[-1].read_text()) if runs else {}
        return {}

    def missing(self, silo: str) -> str:
        """Why a silo did not reply in the last round, as the run's screen shows it."""
        return self.progress().get("silos", {}).get(silo, "not asked yet")

    def at(self, round: int) -> bool:
        news = self.progress()
        return news.get("state") == "training" and news.get("round", 0) >= round

    def results(self, run: Path) -> pd.DataFrame:
        """A run's results, once it has ended with north and south in its last round."""
        found = pd.read_parquet(run / "results.parquet")
        assert set(found[found["round"] == found["round"].max()]["silo"]) == {"north", "south"}
        return found


def waiting(home: Path) -> list[str]:
    """Hashes of studies that wait to be approved."""
    known = {path.stem for path in (home / "approved").glob("*.json")}
    return [path.stem for path in (home / "proposed").glob("*.json") if path.stem not in known]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        drill = Drill(place)
        with small_disk(place / "silos" / "south") as limited:
            try:
                run_through(drill, limited)
            finally:
                for party in drill.parties.values():
                    print(party.log.name, *party.said().splitlines()[-6:], sep="\n    ")
                drill.stop()


def run_through(drill: Drill, limited: bool) -> None:
    """All of it; `limited`: whether south's disk is small."""
    south, coordinator = drill.place / "silos" / "south", drill.fed / "coordinator"
    with took("three keys made, compared and enrolled"):
        for name in NAMES:
            drill.join(name)
    for silo in digits([*NAMES]):
        save_silo(silo, drill.place / "silos" / silo.name / "data.npz")
    with took("coordinator and silos started, all online"):
        drill.start()
        when(lambda: drill.online(3), 400)
    running = drill.begin(rounds=ROUNDS)
    with took("proposed to three owners, approved, first round trained"):
        drill.approve(*NAMES)
        when(lambda: drill.at(1), 240)

    with took("a key revoked during the run, until its silo is locked out"):
        coterie("federation", "remove", str(drill.fed), "east")
        drill.heard("coordinator", "locked out east")
    round = drill.progress()["round"]
    with took("until the other two have trained two more rounds"):
        when(lambda: drill.at(round + 2), 240)

    with took("a certificate renewed during the run, until two more rounds are trained"):
        coterie("federation", "renew", str(drill.fed))
        drill.heard("coordinator", "the certificate was renewed")
        round = drill.progress()["round"]
        when(lambda: drill.at(round + 2), 400)

    if limited:
        with took("a silo's disk filled, until its owner and the coordinator read of it"):
            with contextlib.suppress(OSError), (south / "filler").open("wb") as file:
                while True:
                    file.write(bytes(1 << 12))
            drill.heard("south", "its disk is full")
            when(lambda: "its disk is full" in drill.missing("south"), 240)
        with took("freed, until it replies again"):
            (south / "filler").unlink()
            drill.heard("south", "has room again")
            when(lambda: drill.missing("south") == "", 240)
    shown, _ = running.communicate(timeout=600)
    assert running.returncode == 0, shown
    (first,) = (coordinator / "runs").iterdir()
    results = drill.results(first)
    running = drill.begin(rounds=MORE)
    drill.approve("north", "south")
    when(lambda: drill.at(MORE // 2), 240)
    running.send_signal(signal.SIGINT)
    shown, _ = running.communicate(timeout=120)
    (second,) = {*(coordinator / "runs").iterdir()} - {first}
    assert f"--resume {second.name}" in shown
    kept = drill.place / "fed.zip"
    with took("a run stopped half-way, until the coordinator with it is backed up"):
        when(lambda: drill.asks("backup", str(drill.fed), str(kept), "--keys"), 240)
    drill.parties["coordinator"].stop()
    shutil.rmtree(drill.fed)
    with took("its disk lost, restored from the backup, both silos online again"):
        assert drill.asks("restore", str(drill.fed), str(kept))
        drill.start("coordinator")
        when(lambda: drill.online(2), 400)
    with took("the run resumed, to its end"):
        coterie("federation", "run", str(drill.fed), "--resume", second.name)
    assert drill.results(second)["round"].max() == MORE
    pd.testing.assert_frame_equal(drill.results(first), results)
    for name in ("north", "south"):
        lines = Ledger(drill.place / "silos" / name).entries()  # verified, line by line
        print(f"the ledger of {name} is whole: {len(lines)} lines")
    drill.heard("east", "refuses this silo's key")
    assert drill.parties["east"].process.wait(30) == 2


if __name__ == "__main__":
    main()
