"""Twenty real silos on one machine, four of them killed on the way: does it end, how long is a round, what memory.

    python bench/flower20.py [--silos 20] [--rounds 5] [--killed 4] [--wave 4]

Real Flower processes with TLS and keys on loopback. Needs about 10 GiB of free memory for 20 silos.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from coterie import toml
from coterie.data import catalog
from coterie.deploy.home import free_port
from coterie.deploy.own import save_silo

COMMAND = [sys.executable, "-m", "coterie"]
LOOK = 0.5


def started(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as file:
        return subprocess.Popen([*COMMAND, *arguments], stdout=file, stderr=file, env=env, start_new_session=True)


def online(fed: Path) -> int:
    done = subprocess.run([*COMMAND, "federation", "status", str(fed)], capture_output=True, text=True)
    return done.stdout.count("online")


def memory(folder: Path) -> dict[str, float]:
    """GiB by program, shared pages shared out (Pss), of every process that has to do with this federation."""
    found: dict[str, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if str(folder).encode() in (entry / "cmdline").read_bytes():
                rollup = (entry / "smaps_rollup").read_text().splitlines()
                kib = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
                name = (entry / "comm").read_text().strip()
                found[name] = found.get(name, 0) + kib / 2**20
    return found


def kill_whole(silo: subprocess.Popen[bytes], home: Path) -> None:
    """kill -9 of a silo's keeper and of all its programs."""
    pids = json.loads((home / "state" / "programs.json").read_text())
    os.killpg(silo.pid, signal.SIGKILL)
    for pid in pids.values():
        os.killpg(pid, signal.SIGKILL)
    silo.wait()


def watch(fed: Path, running: subprocess.Popen[bytes], strike: Callable[[], None]) -> dict[str, float]:
    """Follow a run and print what each round took and who was missing; the memory at its peak."""
    peak = dict[str, float]()
    since, sampled, seen = time.monotonic(), 0.0, ("", -1)
    while running.poll() is None:
        time.sleep(LOOK)
        news = {}
        with contextlib.suppress(OSError, ValueError, StopIteration):
            news = json.loads(next((fed / "coordinator" / "runs").glob("*/progress.json")).read_text())
        if news.get("state") in ("training", "measuring") and (news["state"], news["round"]) != seen:
            if seen[0] == "training" and news["round"] != seen[1]:
                missing = "; ".join(f"{name}: {why}" for name, why in news["silos"].items() if why) or "nobody"
                print(f"round {seen[1] + 1}: {time.monotonic() - since:.1f} s; missing {missing}", flush=True)
            since, seen = time.monotonic(), (news["state"], news["round"])
        if seen == ("training", 1) and news.get("waiting"):
            strike()
        if time.monotonic() - sampled > 5:
            sampled, now = time.monotonic(), memory(fed)
            peak = max(peak, now, key=lambda each: sum(each.values()))
    return peak


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("silos", 20), ("rounds", 5), ("killed", 4), ("wave", 4)):
        ask.add_argument(f"--{name}", type=int, default=value)
    given = ask.parse_args()
    names = [f"silo-{i:02}" for i in range(given.silos)]
    with tempfile.TemporaryDirectory() as place:
        fed = Path(place) / "fed"
        arguments = ["federation", "new", str(fed), "--silos", ",".join(names), "--port", str(free_port())]
        subprocess.run([*COMMAND, *arguments], check=True)
        dealt = catalog.load("digits", {"name": "digits", "split": "iid", "silos": given.silos}, 0).silos
        for name, part in zip(names, dealt, strict=True):
            save_silo(part, fed / "silos" / name / "data.npz")
        study = {"name": "twenty", "seeds": [1], "model": {"name": "mlp"}, "methods": {"fedamp": {}}}
        train = {"rounds": given.rounds, "measure_every": given.rounds, "local_epochs": 2, "lr": 0.1}
        (fed / "study.toml").write_text(toml.dumps(study | {"train": train}))
        parties = {"": started("coordinator", str(fed / "coordinator"), log=fed / "coordinator.log")}
        try:
            began = time.monotonic()
            for first in range(0, len(names), given.wave):
                for name in names[first : first + given.wave]:
                    parties[name] = silo(fed, name)
                while online(fed) < min(first + given.wave, len(names)):
                    time.sleep(1)
                print(f"{len(parties) - 1} silos connected after {time.monotonic() - began:.0f} s", flush=True)
            idle = memory(fed)
            struck = list[str]()

            def strike() -> None:
                for name in names[: given.killed] if not struck else ():
                    kill_whole(parties[name], fed / "silos" / name)
                    struck.append(name)
                    parties[name] = silo(fed, name)
                    print(f"killed and started again: {name}", flush=True)

            run = started("federation", "run", str(fed), str(fed / "study.toml"), log=fed / "run.log")
            parties["run"] = run
            peak = watch(fed, run, strike)
            print((fed / "run.log").read_text())
            if run.returncode:
                sys.exit(f"the run ended with {run.returncode}")
            results = pd.read_parquet(next((fed / "coordinator" / "runs").iterdir()) / "results.parquet")
            last = results[results["round"] == given.rounds]
            print(f"measured after round {given.rounds}: {last['silo'].nunique()} of {given.silos} silos")
            print(f"killed: {', '.join(struck)}; back at the end: {', '.join(sorted(set(struck) & set(last['silo'])))}")
            for what, found in (("waiting", idle), ("at its peak", peak)):
                split = ", ".join(f"{name} {gib:.2f}" for name, gib in sorted(found.items()))
                print(f"memory {what}: {sum(found.values()):.1f} GiB ({split})")
            print(f"load: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")
        finally:
            for process in reversed(parties.values()):
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            for process in parties.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60)


def silo(fed: Path, name: str) -> subprocess.Popen[bytes]:
    return started("silo", str(fed / "silos" / name), "--device", "cpu", log=fed / f"{name}.log")


if __name__ == "__main__":
    main()
