"""How cost grows: rounds per second against silos and weights, and the server's step alone.

    python bench/growth.py [--device cpu|cuda] [--most 2e9] [--plot FILE.svg]

A round is five mini-batches of 32 in every silo under FedAMP, then the server's attention; nothing is measured in it.
The model is an MLP whose hidden layer gives it about so many weights. `--most` leaves out what would hold more numbers
(silos times weights) than that.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from speed import seconds
from works import Work

from coterie.engine.method import Cohort
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.methods.fedamp import FedAMP

SILOS, WEIGHTS = (10, 30, 100, 300, 1000), (10**3, 10**4, 10**5, 10**6, 10**7)
SERVER = ((100, 1_700_000), (300, 1_700_000), (1000, 1_700_000))
FEATURES, CLASSES = 64, 10


def round_seconds(silos: int, weights: int, device: str) -> float:
    """The median of three rounds, after two for warming up."""
    hidden = max(1, (weights - CLASSES) // (FEATURES + 1 + CLASSES))
    model_table: dict[str, object] = {"name": "mlp", "hidden": [hidden]}
    work = Work("growth", device, model_table, (FEATURES,), CLASSES, silos, 32, "sgd", FedAMP(), batches=5)
    model = Model(work.factory(), CLASSES, device)
    engine = Simulator(work.method, work.data(), model, work.training(), 0, "auto")
    cohort = Cohort(torch.arange(silos, device=device), 0, engine.roster, engine.model)
    server = work.method.open(engine.roster, model)

    def one() -> None:
        nonlocal server
        replies = engine.train(cohort, work.method.send(server, cohort))
        server = work.method.receive(server, cohort, replies.up)

    for _ in range(2):
        one()
    return statistics.median(seconds(one, device) for _ in range(3))


def attention_seconds(silos: int, weights: int, device: str) -> float:
    """FedAMP's server step on models that are there: distances, attention, every silo's cloud model."""
    method, w = FedAMP(), torch.randn(silos, weights, device=device)

    def one() -> None:
        xi = method.attention(w).to(w.dtype)
        for part in torch.arange(silos, device=device).split(100):  # type: ignore[no-untyped-call]
            xi[part] @ w

    one()
    return statistics.median(seconds(one, device) for _ in range(3))


def plot(lines: list[dict[str, float]], device: str, path: Path) -> None:
    """Rounds per second against silos, one curve per size of the model."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4))
    for weights in WEIGHTS:
        mine = [line for line in lines if line["weights"] == weights]
        if mine:
            label = f"{weights:,} weights"
            axes.plot([p["silos"] for p in mine], [p["rounds_per_second"] for p in mine], "o-", label=label)
    axes.set(xscale="log", yscale="log", xlabel="silos", ylabel="rounds per second", title=f"FedAMP on {device}")
    axes.set_xticks(SILOS, [f"{silos:,}" for silos in SILOS], minor=False)
    axes.set_xticks([], minor=True)
    shown = [rate for rate in (1, 2, 5, 10, 20, 50, 100) if axes.get_ylim()[0] <= rate <= axes.get_ylim()[1]]
    axes.set_yticks(shown, [str(rate) for rate in shown])
    axes.set_yticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Print both tables and write bench/out/growth.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--most", type=float, default=2e8)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    console = Console(width=120)
    lines = [
        {"silos": m, "weights": d, "rounds_per_second": 1 / round_seconds(m, d, options.device)}
        for d in WEIGHTS
        for m in SILOS
        if m * d <= options.most
    ]
    table = Table("weights", *(f"{m} silos" for m in SILOS), title=f"Rounds per second, {options.device}")
    for d in WEIGHTS:
        found = {line["silos"]: line["rounds_per_second"] for line in lines if line["weights"] == d}
        table.add_row(f"{d:,}", *(f"{found[m]:.3g}" if m in found else "-" for m in SILOS))
    console.print(table)
    steps = [
        {"silos": m, "weights": d, "seconds": attention_seconds(m, d, options.device)}
        for m, d in SERVER
        if m * d <= options.most
    ]
    table = Table("silos", "weights", "seconds", title=f"FedAMP's server step, {options.device}")
    for step in steps:
        table.add_row(str(step["silos"]), f"{step['weights']:,}", f"{step['seconds']:.3f}")
    console.print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.json").write_text(json.dumps({"rounds": lines, "server": steps}, indent=1) + "\n")
    if options.plot is not None:
        plot(lines, options.device, options.plot)


if __name__ == "__main__":
    main()
