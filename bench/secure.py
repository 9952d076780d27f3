"""What it costs that the server cannot read.

`python bench/secure.py accuracy --seeds 0,1,2`: plain against each level, mean test accuracy over silos and the last
rounds. `--data digits`: the embedded digits in groups. `--data fmnist --path FOLDER`: Fashion-MNIST, 20 silos in five
groups of four, 150 training rows each, an MLP of 51,000 weights, 15 rounds. With `--out FILE` every run is a line of
JSON there, and a second start goes on behind them; `--device cuda` needs `cryptography` beside CUDA.

`python bench/secure.py cost`: bytes and CPU seconds of a round at 1.7 million weights and ten silos, one silo after
another as if deployed; the levels take turns, round by round, and the median of each is held against plain.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.data.silo import Part, Silo
from coterie.engine.judge import judged
from coterie.engine.method import Cohort, Method
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.methods import make
from coterie.models import build
from coterie.run.experiment import prepare
from coterie.studies.study import check, read

METHODS = ("fedamp", "heurfedamp", "fedacs", "fedavg-ft", "ditto", "fedem")
LEVELS: dict[str, dict[str, Any]] = {"plain": {}, "blind": {"blind": {}}, "secagg": {"secagg": {}}}
LAST = 5  # measured rounds that are averaged
HIDDEN, SILOS = (1280, 1250), 10  # 1.7 million weights


# Methods with what the digits' study gives them: nothing was tuned on these.
FMNIST: dict[str, Any] = {
    "data": {"name": "fmnist", "split": "groups", "silos": 20, "groups": 5, "sizes": [150], "test": 200},
    "model": {"name": "mlp", "hidden": [64]},
    "train": {"rounds": 15, "local_epochs": 2, "batch_size": 32, "lr": 0.1},
}


def accuracy(names: list[str], seeds: list[int], data: str, path: str, device: str, out: Path | None) -> None:
    """A line for each run, and for each method its mean over seeds and the levels' difference from plain."""
    table = read("digits") | (FMNIST if data == "fmnist" else {}) | {"engine": {"device": device}}
    table["data"] = dict(table["data"]) | ({"path": path} if path else {})
    lines = out.read_text("utf-8").splitlines() if out is not None and out.exists() else []
    known = {(e["data"], e["method"], e["seed"], e["level"]): e["accuracy"] for e in map(json.loads, lines)}
    for name in names:
        scores = dict[str, list[float]]()
        for seed in seeds:
            study, federation = prepare(check(table, [name]), seed)
            for level, options in LEVELS.items():
                key = (data, name, seed, level)
                if key not in known:
                    own = {key: value for key, value in table["methods"][name].items() if key != "train"}
                    method, began = make(name, own | options), time.process_time()
                    if method.refusal(federation.engine(method).roster, federation.model) is not None:
                        continue
                    outcome = federation.train(method, training=study.training_of(name), models=False)
                    known[key] = 100 * _score(outcome.results)
                    line = dict(zip(("data", "method", "seed", "level"), key, strict=True)) | {"accuracy": known[key]}
                    line = json.dumps(line | {"cpu_seconds": round(time.process_time() - began, 1)})
                    print(line, flush=True)
                    if out is not None:
                        with out.open("a", encoding="utf-8") as file:
                            file.write(line + "\n")
                scores.setdefault(level, []).append(known[key])
        for level, values in scores.items():
            apart = [a - b for a, b in zip(values, scores["plain"], strict=True)]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            mean, off = statistics.mean(values), statistics.mean(apart)
            print(f"{data} {name} {level}: {mean:.2f} ± {spread:.2f} over {len(values)} seeds ({off:+.2f})", flush=True)


def _score(results: list[Any]) -> float:
    rounds = [float(t[(t["split"] == "test") & (t["measure"] == "accuracy")]["value"].mean()) for t in results[-LAST:]]
    return statistics.mean(rounds)


def cost(names: list[str], samples: int, epochs: int, rounds: int) -> None:
    """A line for each method and level: megabytes of a silo in a round, up and down, and seconds."""
    draw = np.random.default_rng(0)

    def part(n: int) -> Part:
        return Part(draw.normal(size=(n, 64)).astype(np.float32), draw.integers(10, size=n))

    silos = [Silo(f"silo-{i}", part(samples), part(2), part(2)) for i in range(SILOS)]
    factory, _ = build({"name": "mlp", "hidden": list(HIDDEN)}, (64,), 10)
    training = Training(rounds=rounds, local_epochs=epochs, batch_size=32, lr=0.01)
    for name in names:
        running = dict[str, Running]()
        for level, options in LEVELS.items():
            method, model = make(name, options), Model(factory, 10)
            engine = Simulator(method, silos, model, training, 0, rows=1)
            if method.refusal(engine.roster, model) is None:
                running[level] = Running(method, engine)
        for _ in range(rounds + 1):
            for each in running.values():
                each.round()
        plain = running["plain"].cost()
        for level, each in running.items():
            found = up, down, seconds = each.cost()
            ratios = ", ".join(f"{a / b:.2f}" for a, b in zip(found, plain, strict=True))
            print(
                f"{name} {level}: d = {each.engine.model.width:,}; {up:.2f} MB up, {down:.2f} MB down, "
                f"{seconds:.2f} CPU s, which is {ratios} times plain",
                flush=True,
            )


class Running:
    """A method under way: its server, and what its rounds cost."""

    def __init__(self, method: Method, engine: Simulator) -> None:
        self.method, self.engine, self.seconds = method, engine, list[float]()
        self.server, self.bytes = method.open(engine.roster, engine.model), (0, 0)

    def round(self) -> None:
        """One more round."""
        began, method = time.process_time(), self.method  # others may be busy
        cohort = Cohort.everyone(self.engine.roster, self.engine.model, len(self.seconds))
        sent = method.send(self.server, cohort)
        replies = judged(method, self.engine, cohort.ids, sent, self.engine.train(cohort, sent), 10, {})
        self.server = method.receive(self.server, cohort, replies.up)
        self.seconds.append(time.process_time() - began)
        self.bytes = replies.bytes_up, replies.bytes_down

    def cost(self) -> tuple[float, float, float]:
        """Megabytes up and down of one silo, and the seconds of all ten and the server, without the first round."""
        up, down = self.bytes
        return up / SILOS / 1e6, down / SILOS / 1e6, statistics.median(self.seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["accuracy", "cost"])
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--methods", default="")
    parser.add_argument("--data", choices=["digits", "fmnist"], default="digits")
    parser.add_argument("--path", default="", help="the folder of Fashion-MNIST's files, where they were not fetched")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="a file that each run becomes a line of, and that is gone on with")
    parser.add_argument("--samples", type=int, default=2000, help="of each silo")
    parser.add_argument("--epochs", type=int, default=1, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in given.methods.split(",") if name]
    if given.what == "accuracy":
        seeds = [int(seed) for seed in given.seeds.split(",")]
        accuracy(names or [*METHODS], seeds, given.data, given.path, given.device, given.out)
    else:
        cost(names or ["fedavg", "fedamp"], given.samples, given.epochs, given.rounds)


if __name__ == "__main__":
    main()
