"""Samples that memory does not hold: what a process takes for itself, and whether it trains the same.

    python bench/mapped.py [--silos 8] [--rows 25000] [--columns 1000] [--folder FOLDER]

Silos of one array each are read, prepared and trained on for two rounds of FedAvg, with the samples in memory and with
them in files. Memory is what no other process could have (RssAnon), at its highest, over that of the same process
before it reads; pages of mapped files, which the system takes back when it needs them, do not count.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROUNDS = 2


def own(kind: str = "RssAnon") -> int:
    """Bytes of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return 1024 * int(line.split()[1])


def write(folder: Path, silos: int, rows: int, columns: int) -> None:
    """Noise, of which the first column decides the label."""
    for place in range(silos):
        rng = np.random.default_rng(place)
        x = rng.standard_normal((rows, columns), np.float32)
        np.savez(folder / f"silo-{place:03d}.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))


def trained(folder: str, in_memory: float) -> None:
    """Print what this process took and what it trained."""
    from coterie.run.experiment import prepare
    from coterie.studies.study import check

    table = {
        "data": {"name": "own", "path": folder},
        "model": {"name": "linear"},
        "train": {"rounds": ROUNDS, "local_epochs": 1, "batch_size": 64, "lr": 0.01, "measure": ["validation", "test"]},
        "engine": {"in_memory": in_memory, "models": False},
        "methods": {"fedavg": {}},
    }
    highest, ended, before = [own()], threading.Event(), own()

    def watch() -> None:
        while not ended.wait(0.01):
            highest.append(own())

    threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    study, federation = prepare(check(table), 0)
    read = time.perf_counter() - began
    outcome = federation.train(study.methods["fedavg"], models=False)
    ended.set()
    losses = [float(value) for frame in outcome.results for value in frame["value"]]
    took = {"peak": max(highest) - before, "read_s": read, "train_s": time.perf_counter() - began - read}
    print(json.dumps(took | {"values": losses}), flush=True)


def main() -> None:
    """Both ways, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=8)
    parser.add_argument("--rows", type=int, default=25000, help="of a silo")
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where the silos are written; not one that lies in memory")
    given = parser.parse_args()
    size = 4 * given.silos * given.rows * given.columns
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        write(Path(name), given.silos, given.rows, given.columns)
        found = []
        for what, in_memory in (("in memory", 1e6), ("in files", 0)):
            done = subprocess.run(
                [sys.executable, __file__, "trained", name, str(in_memory)], check=True, stdout=subprocess.PIPE
            )
            found.append(json.loads(done.stdout.splitlines()[-1]))
            took = found[-1]
            print(
                f"{size / 1e6:.0f} MB of samples {what}: {took['peak'] / 1e6:.0f} MB at the peak "
                f"({took['peak'] / size:.2f} of them); "
                f"read in {took['read_s']:.1f} s, trained in {took['train_s']:.1f} s",
                flush=True,
            )
    print("the same results" if found[0]["values"] == found[1]["values"] else "OTHER RESULTS")


if __name__ == "__main__":
    if sys.argv[1:2] == ["trained"]:
        trained(sys.argv[2], float(sys.argv[3]))
    else:
        main()
