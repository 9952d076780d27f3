"""What an IT department tries before it approves: docs/it.md from its first command on, with real Flower processes.

    python bench/drill.py

Three silos that make their own keys; a key revoked and a certificate renewed during a run; a silo's disk filled and
freed; the coordinator's disk lost and restored. Nothing is lost, each is reported in words, and how long each took is
printed. Needs nginx, and root to mount a disk of 16 MB (without, no disk is filled).
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
ROUNDS = 30


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
        coterie("federation", "new", str(self.fed), "--host", "127.0.0.1", "--port", str(self.port))

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
            words = ["coordinator", str(home)] if coordinates else ["silo", str(home), "--device", "cpu"]
            self.parties[name] = Party(home, *words)

    def stop(self) -> None:
        for party in self.parties.values():
            if party.process.poll() is None:
                party.process.terminate()
        for party in self.parties.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                party.process.wait(40)

    def online(self, count: int) -> bool:
        return coterie("federation", "status", str(self.fed), check=False).stdout.count("online") == count

    def said(self, name: str) -> str:
        return self.parties[name].said()

    def begin(self, rounds: int) -> subprocess.Popen[str]:
        train = {"rounds": rounds, "measure_every": rounds, "local_epochs": 1, "batch_size": 16, "lr": 0.1}
        table = {"name": "drill", "seeds": [1], "model": {"name": "mlp", "hidden": [8]}, "train": train}
        path = self.place / "study.toml"
        path.write_text(toml.dumps(table | {"methods": {"scaffold": {}}}))
        words = [*COMMAND, "federation", "run", str(self.fed), str(path), "--gather", "0"]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment())

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

    def at(self, round: int) -> bool:
        news = self.progress()
        return news.get("state") == "training" and news.get("round", 0) >= round


def waiting(home: Path) -> list[str]:
    """Hashes of studies that wait to be approved."""
    known = {path.stem for path in (home / "approved").glob("*")}
    return [path.stem for path in (home / "proposed").glob("*") if path.stem not in known]


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
        when(lambda: "locked out east" in drill.said("coordinator"), 120)
    round = drill.progress()["round"]
    with took("until the other two have trained two more rounds"):
        when(lambda: drill.at(round + 2), 240)

    with took("a certificate renewed during the run, until two more rounds are trained"):
        coterie("federation", "renew", str(drill.fed))
        when(lambda: "the certificate was renewed" in drill.said("coordinator"), 60)
        round = drill.progress()["round"]
        when(lambda: drill.at(round + 2), 400)

    if limited:
        with took("a silo's disk filled, until its owner and the coordinator read of it"):
            with contextlib.suppress(OSError), (south / "filler").open("wb") as file:
                while True:
                    file.write(bytes(1 << 12))
            when(lambda: "its disk is full" in drill.said("south"), 60)
            when(lambda: "disk is full" in drill.progress().get("silos", {}).get("south", ""), 240)
        with took("freed, until it replies again"):
            (south / "filler").unlink()
            when(lambda: drill.progress().get("silos", {}).get("south") == "", 240)
    shown, _ = running.communicate(timeout=600)
    assert running.returncode == 0, shown
    (run,) = (coordinator / "runs").iterdir()
    results = pd.read_parquet(run / "results.parquet")
    assert set(results[results["round"] == ROUNDS]["silo"]) == {"north", "south"}
    for name in ("north", "south"):
        assert Ledger(drill.place / "silos" / name).entries()  # verified, line by line

    kept = drill.place / "fed.zip"
    with took("the coordinator backed up"):
        asked = [*COMMAND, "federation", "backup", str(drill.fed), str(kept), "--keys"]
        subprocess.run(asked, input=SECRET * 2, text=True, check=True, env=environment())
    drill.parties["coordinator"].stop()
    shutil.rmtree(drill.fed)
    with took("its disk lost, restored from the backup, both silos online again"):
        asked = [*COMMAND, "federation", "restore", str(drill.fed), str(kept)]
        subprocess.run(asked, input=SECRET, text=True, check=True, env=environment())
        drill.start("coordinator")
        when(lambda: drill.online(2), 400)
    pd.testing.assert_frame_equal(pd.read_parquet(run / "results.parquet"), results)
    assert not (coordinator / "members" / "east.pub").exists()
    with took("a new run after that, its approval included"):
        running = drill.begin(rounds=2)
        drill.approve("north", "south")
        shown, _ = running.communicate(timeout=400)
    assert running.returncode == 0, shown
    assert drill.parties["east"].process.poll() == 2 or "not accepted" in drill.said("east")


if __name__ == "__main__":
    main()
