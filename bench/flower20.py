"""Real silos on one machine, some of them killed on the way: does it end, how long is a round, what memory, what bytes.

    python bench/flower20.py [--silos 20] [--rounds 5] [--killed 4] [--wave 4] [--hidden 50]
    python bench/flower20.py --silos 3 --rounds 20 --killed 0        # what a small round takes and costs

Real Flower processes with TLS and keys on loopback, through a relay that counts bytes and nginx, which notes what each
call costs. Needs nginx, and about 10 GiB of free memory for 20 silos.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from threading import Thread

import pandas as pd

from coterie import toml
from coterie.data import catalog
from coterie.deploy.home import free_port
from coterie.deploy.own import save_silo

COMMAND = [sys.executable, "-m", "coterie"]
LOOK = 0.05
IDLE = 10.0  # seconds for which all wait and are looked at


@dataclass
class Watched:
    """What was seen of a run: seconds, bytes on the wire and calls noted after each round; the memory at its peak."""

    seconds: list[float] = field(default_factory=list)
    bytes: list[Counter[str]] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    peak: Counter[str] = field(default_factory=Counter)


def started(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as file:
        return subprocess.Popen([*COMMAND, *arguments], stdout=file, stderr=file, env=env, start_new_session=True)


class Relay(Thread):
    """Stands before a port and counts the bytes that silos send and are sent."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.behind, self.bytes = free_port(), port, Counter[str]()
        self.start()

    def run(self) -> None:
        asyncio.run(self.serve())

    async def serve(self) -> None:
        async with await asyncio.start_server(self.connected, "127.0.0.1", self.port) as server:
            await server.serve_forever()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self.behind)
            await asyncio.gather(self.copy(reader, back, "up"), self.copy(there, writer, "down"))

    async def copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, which: str) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(1 << 16):
                self.bytes[which] += len(piece)
                sink.write(piece)
                await sink.drain()
        sink.close()


def note_calls(fed: Path) -> None:
    """Have nginx write down every call: its path, its bytes up and down, both as they are inside TLS."""
    conf = fed / "coordinator" / "nginx.conf"
    noted = "log_format calls '$uri $request_length $bytes_sent'; access_log logs/calls.log calls;"
    conf.write_text(conf.read_text().replace("access_log off;", noted))


def calls(fed: Path) -> list[str]:
    return (fed / "coordinator" / "logs" / "calls.log").read_text().splitlines()


def print_calls(noted: list[str], parts: int) -> None:
    """What each of Flower's calls took, of all that were noted in so many rounds of silos."""
    count, up, down = Counter[str](), Counter[str](), Counter[str]()
    for path, sent, received in (line.split() for line in noted):
        name = path.rpartition("/")[2]
        count[name] += 1
        up[name] += int(sent)
        down[name] += int(received)
    for name, times in count.most_common():
        each = f"{up[name] / times:.0f} B up, {down[name] / times:.0f} down each"
        print(f"    {name}: {times / parts:.2f} × {each}; {up[name] / parts:.0f} up, {down[name] / parts:.0f} down")
    print(f"    together {sum(up.values()) / parts:.0f} up, {sum(down.values()) / parts:.0f} down; the rest is TLS")


def online(fed: Path) -> int:
    done = subprocess.run([*COMMAND, "federation", "status", str(fed)], capture_output=True, text=True)
    return done.stdout.count("online")


def print_status(fed: Path) -> None:
    """How long `coterie federation status` takes, from shell to shell, a few times."""
    taken, before = list[float](), resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(5):
        began = time.monotonic()
        online(fed)
        taken.append(time.monotonic() - began)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) / len(taken)
    each = ", ".join(f"{seconds:.2f}" for seconds in taken)
    print(f"status: median {median(taken):.2f} s ({each}), {spent:.2f} processor seconds each", flush=True)


def programs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every process that has to do with this federation: whose program it is, and its entry of /proc."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            command = (entry / "cmdline").read_bytes() if environment else b""
            if str(folder).encode() in command + environment:
                silo = b"/silos/" in command + environment
                yield f"{'silo' if silo else 'coordinator'}:{(entry / 'comm').read_text().strip()}", entry


def memory(folder: Path) -> Counter[str]:
    """MiB by program, shared pages shared out (Pss)."""
    found = Counter[str]()
    for name, entry in programs(folder):
        with contextlib.suppress(OSError):
            rollup = (entry / "smaps_rollup").read_text().splitlines()
            found[name] += next(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) / 2**10
    return found


def processor(folder: Path) -> Counter[str]:
    """Processor seconds by program so far."""
    found = Counter[str]()
    for name, entry in programs(folder):
        with contextlib.suppress(OSError):
            ticks = (entry / "stat").read_text().rpartition(")")[2].split()[11:13]
            found[name] += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return found


def kill_whole(silo: subprocess.Popen[bytes], home: Path) -> None:
    """kill -9 of a silo's keeper and of all its programs."""
    pids = json.loads((home / "state" / "programs.json").read_text())
    os.killpg(silo.pid, signal.SIGKILL)
    for pid in pids.values():
        os.killpg(pid, signal.SIGKILL)
    silo.wait()


def watch(fed: Path, running: subprocess.Popen[bytes], relay: Relay, strike: Callable[[], None]) -> Watched:
    """Follow a run and print what each round took and who was missing."""
    seen = Watched()
    since, sampled, last = time.monotonic(), 0.0, ("", -1)
    while running.poll() is None:
        time.sleep(LOOK)
        news = {}
        with contextlib.suppress(OSError, ValueError, StopIteration):
            news = json.loads(next((fed / "coordinator" / "runs").glob("*/progress.json")).read_text())
        if news.get("state") in ("training", "measuring") and (news["state"], news["round"]) != last:
            if last[0] == "training" and news["round"] != last[1]:
                missing = "; ".join(f"{name}: {why}" for name, why in news["silos"].items() if why) or "nobody"
                seen.seconds.append(time.monotonic() - since)
                print(f"round {last[1] + 1}: {seen.seconds[-1]:.1f} s; missing {missing}", flush=True)
                seen.bytes.append(Counter(relay.bytes))
                seen.calls.append(len(calls(fed)))
            since, last = time.monotonic(), (news["state"], news["round"])
        if last == ("training", 1) and news.get("waiting"):
            strike()
        if time.monotonic() - sampled > 5:
            sampled, now = time.monotonic(), memory(fed)
            seen.peak = max(seen.peak, now, key=lambda each: sum(each.values()))
    return seen


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("silos", 20), ("rounds", 5), ("killed", 4), ("wave", 4), ("hidden", 50)):
        ask.add_argument(f"--{name}", type=int, default=value)
    given = ask.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    names = [f"silo-{i:02}" for i in range(given.silos)]
    with tempfile.TemporaryDirectory() as place:
        fed, port = Path(place) / "fed", free_port()
        arguments = ["federation", "new", str(fed), "--silos", ",".join(names), "--port", str(port), "--proxy"]
        subprocess.run([*COMMAND, *arguments], check=True)
        note_calls(fed)
        relay = Relay(port)
        dealt = catalog.load("digits", {"name": "digits", "split": "iid", "silos": given.silos}, 0).silos
        for name, part in zip(names, dealt, strict=True):
            home = fed / "silos" / name
            save_silo(part, home / "data.npz")
            table = json.loads((home / "settings.json").read_text()) | {"port": relay.port}
            (home / "settings.json").write_text(json.dumps(table))
        model = {"name": "mlp", "hidden": [given.hidden]}
        study = {"name": "twenty", "seeds": [1], "model": model, "methods": {"fedamp": {}}}
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
            print_status(fed)
            time.sleep(IDLE)
            before, idle, used = Counter(relay.bytes), memory(fed), processor(fed)
            time.sleep(IDLE)
            spent = {name: (used_by - used[name]) / IDLE for name, used_by in processor(fed).items() if name in used}
            waiting = {which: (count - before[which]) / IDLE for which, count in relay.bytes.items()}
            struck = list[str]()

            def strike() -> None:
                for name in names[: given.killed] if not struck else ():
                    kill_whole(parties[name], fed / "silos" / name)
                    struck.append(name)
                    parties[name] = silo(fed, name)
                    print(f"killed and started again: {name}", flush=True)

            run = started("federation", "run", str(fed), str(fed / "study.toml"), log=fed / "run.log")
            parties["run"] = run
            seen = watch(fed, run, relay, strike)
            print((fed / "run.log").read_text())
            if run.returncode:
                sys.exit(f"the run ended with {run.returncode}")
            folder = next((fed / "coordinator" / "runs").iterdir())
            results = pd.read_parquet(folder / "results.parquet")
            last = results[results["round"] == given.rounds]
            print(f"measured after round {given.rounds}: {last['silo'].nunique()} of {given.silos} silos")
            print(f"killed: {', '.join(struck)}; back at the end: {', '.join(sorted(set(struck) & set(last['silo'])))}")
            for what, found in (("waiting", idle), ("at its peak", seen.peak)):
                split = ", ".join(f"{name} {mib:.0f}" for name, mib in sorted(found.items()))
                print(f"memory {what}, MiB: {sum(found.values()):.0f} ({split})")
            own = [mib for name, mib in idle.items() if name.startswith("silo:")]
            print(f"memory of a silo that waits: {sum(own) / given.silos:.0f} MiB")
            print("processor while waiting, % of a core:", ", ".join(f"{n} {100 * s:.1f}" for n, s in spent.items()))
            print(
                f"a silo that waits: {waiting['up'] / given.silos:.0f} B/s up, {waiting['down'] / given.silos:.0f} down"
            )
            seconds = json.loads((folder / "summary.json").read_text())["methods"]["fedamp"]["train_seconds"]
            print(f"a round of training: {seconds / given.rounds:.2f} s")
            if seen.seconds:
                middle, least, most = median(seen.seconds), min(seen.seconds), max(seen.seconds)
                print(f"rounds as seen: median {middle:.2f} s, from {least:.2f} to {most:.2f}")
            model_bytes = 4 * (64 * given.hidden + given.hidden + 10 * given.hidden + 10)
            for which in ("up", "down") if len(seen.bytes) > 1 else ():
                each = (seen.bytes[-1][which] - seen.bytes[0][which]) / (len(seen.bytes) - 1) / given.silos
                ratio = each / model_bytes
                print(f"bytes {which} in a round of a silo: {each:.0f}, {ratio:.2f} × the model's {model_bytes}")
            if len(seen.calls) > 1:
                print("Flower's calls in a round of a silo:")
                print_calls(calls(fed)[seen.calls[0] : seen.calls[-1]], (len(seen.calls) - 1) * given.silos)
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
