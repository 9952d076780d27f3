"""What several processes save: memory and traffic of each, and that the results are those of one.

    python bench/ranks.py [--ranks 1,2,4] [--silos 16] [--hidden 2000] [--rounds 3] [--method fedamp]

Processes on this machine's CPU, over gloo. Memory is the most that a process held above what it held before the run
(PyTorch and Coterie themselves); traffic is what it sent to the others in a round.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie.data.silo import Part, Silo
from coterie.engine import ranks
from coterie.engine.method import Cohort
from coterie.engine.rounds import Outcome, exchange, measure
from coterie.engine.rows import Model
from coterie.engine.sharded import simulator
from coterie.engine.training import Training
from coterie.methods import make

INPUTS, SAMPLES = 64, 64


def silos(count: int) -> list[Silo]:
    """Of a few samples each: what is measured is the models'."""
    made = []
    for i in range(count):
        draw = np.random.default_rng(i)
        parts = [
            Part(draw.normal(size=(SAMPLES, INPUTS)).astype(np.float32), draw.integers(10, size=SAMPLES))
            for _ in range(3)
        ]
        made.append(Silo(f"silo {i}", *parts))
    return made


def resident(what: str) -> int:
    """Bytes that this process holds (VmRSS) or has held at most since that was last set back (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def work(given: argparse.Namespace) -> dict[str, Any]:
    """Some rounds in one of the processes."""
    sent = [0]
    plain = ranks.exchanged

    def counted(parts: Any, shapes: Any) -> Any:
        sent[0] += sum(part.nbytes for rank, part in enumerate(parts) if rank != ranks.rank())
        return plain(parts, shapes)

    ranks.exchanged = counted
    federation = silos(given.silos)
    hidden = given.hidden

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
        )

    training = Training(rounds=given.rounds, local_epochs=1, batch_size=32, lr=0.01, norm_limit=10.0)
    model = Model(build, 10)
    model.probe(torch.from_numpy(federation[0].train.x[:8]))
    Path("/proc/self/clear_refs").write_text("5")  # the most it has held is what it holds now
    before = resident("VmRSS")
    engine = simulator()(make(given.method, {}), federation, model, training, 0, 1, models=False)
    everyone = Cohort.everyone(engine.roster, model, 0)
    outcome, seconds = Outcome(engine.method.open(engine.roster, model).settled()), []
    for round in range(given.rounds):
        sent[0] = 0
        began = time.perf_counter()
        exchange(outcome, engine.method, engine, replace(everyone, round=round), training)
        seconds.append(time.perf_counter() - began)
        traffic = sent[0]
    measure(outcome, engine.method, engine, everyone, training, given.rounds)
    loss = outcome.results[-1].query("measure == 'loss' and split == 'test'")["value"]
    return {
        "held": resident("VmHWM") - before,
        "sent": traffic,
        "seconds": statistics.median(seconds),
        "width": model.width,
        "loss": float(loss.mean()),
    }


def started(count: int, words: list[str]) -> list[dict[str, Any]]:
    """What each of so many processes measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    known = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", *words],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
            }
            | {key: str(value) for key, value in known.items()},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    return [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]


def main() -> None:
    """Print a row for each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--silos", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--method", default="fedamp")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        if int(os.environ["WORLD_SIZE"]) > 1:
            ranks.join()
        print(json.dumps(work(given)))
        return
    words = [f"--{key}={getattr(given, key)}" for key in ("silos", "hidden", "rounds", "method")]
    heads = ("held, MB", "m x d here, MB", "sent a round, MB", "s a round", "loss")
    print("{:>9} {:>20} {:>15} {:>17} {:>10} {:>12}".format("processes", *heads))
    for count in map(int, given.ranks.split(",")):
        found = started(count, words)
        held = [each["held"] / 1e6 for each in found]
        rows = given.silos * found[0]["width"] * 4 / 1e6 / count
        spread = f"{statistics.median(held):.0f} ({min(held):.0f} to {max(held):.0f})"
        sent, seconds = (max(each[key] for each in found) for key in ("sent", "seconds"))
        print(f"{count:9} {spread:>20} {rows:15.1f} {sent / 1e6:17.1f} {seconds:10.2f} {found[0]['loss']:12.8f}")


if __name__ == "__main__":
    main()
