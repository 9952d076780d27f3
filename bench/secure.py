"""What it costs that the server cannot read: `python bench/secure.py accuracy --seeds 0,1,2` or `… cost`.

`accuracy`: the embedded digits in groups, plain against each level, the last rounds' mean test accuracy. `cost`: bytes
and CPU seconds of a round at 1.7 million weights and ten silos, one silo after another as if deployed.
"""

import argparse
import statistics
import time
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


def accuracy(names: list[str], seeds: list[int]) -> None:
    """A line for each method: mean test accuracy over silos and seeds, and the levels' difference from plain."""
    table = read("digits")
    for name in names:
        scores = dict[str, list[float]]()
        for seed in seeds:
            study, federation = prepare(check(table, [name]), seed)
            for level, options in LEVELS.items():
                own = {key: value for key, value in table["methods"][name].items() if key != "train"}
                method = make(name, own | options)
                if method.refusal(federation.engine(method).roster, federation.model) is None:
                    outcome = federation.train(method, training=study.training_of(name), models=False)
                    scores.setdefault(level, []).append(100 * _score(outcome.results))
        means = {level: statistics.mean(values) for level, values in scores.items()}
        apart = {
            level: [a - b for a, b in zip(values, scores["plain"], strict=True)] for level, values in scores.items()
        }
        shown = (f"{level} {means[level]:.2f} ({statistics.mean(apart[level]):+.2f})" for level in means)
        print(f"{name}: {', '.join(shown)}", flush=True)


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
        plain: tuple[float, float, float] | None = None
        for level, options in LEVELS.items():
            method = make(name, options)
            model = Model(factory, 10)
            engine = Simulator(method, silos, model, training, 0, rows=1)
            if method.refusal(engine.roster, model) is not None:
                continue
            found = _round(method, engine, rounds)
            plain = plain or found
            ratios = ", ".join(f"{a / b:.2f}" for a, b in zip(found, plain, strict=True))
            up, down, seconds = found
            print(
                f"{name} {level}: d = {model.width:,}; {up:.2f} MB up, {down:.2f} MB down, {seconds:.1f} CPU s, "
                f"which is {ratios} times plain",
                flush=True,
            )


def _round(method: Method, engine: Simulator, rounds: int) -> tuple[float, float, float]:
    """Megabytes up and down of one silo, and the seconds of all ten and the server, of the fastest but the first."""
    server, seconds, up, down = method.open(engine.roster, engine.model), list[float](), 0, 0
    for round in range(rounds + 1):
        began = time.process_time()  # others may be busy
        cohort = Cohort.everyone(engine.roster, engine.model, round)
        sent = method.send(server, cohort)
        replies = judged(method, engine, cohort.ids, sent, engine.train(cohort, sent), 10, {})
        server = method.receive(server, cohort, replies.up)
        seconds.append(time.process_time() - began)
        up, down = replies.bytes_up, replies.bytes_down
    return up / SILOS / 1e6, down / SILOS / 1e6, min(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["accuracy", "cost"])
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--methods", default="")
    parser.add_argument("--samples", type=int, default=2000, help="of each silo")
    parser.add_argument("--epochs", type=int, default=1, help="of a round")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in given.methods.split(",") if name]
    if given.what == "accuracy":
        accuracy(names or [*METHODS], [int(seed) for seed in given.seeds.split(",")])
    else:
        cost(names or ["fedavg", "fedamp"], given.samples, given.epochs, given.rounds)


if __name__ == "__main__":
    main()
