"""What a frozen base costs: all silos as rows beside plain PyTorch, one silo after another, in one run.

    PYTHONPATH=. python3 bench/frozen.py            # a GPU's sizes, or --toy for a CPU

Two works: the head of a frozen ResNet-18 (kept features, the base computed in every step, and everything trained), and
low-rank adapters on a transformer. Each line is seconds of a round after a warm-up, how many times as fast as plain
PyTorch that trains the same parameters, the numbers in a row, the most memory that the round held, and the seconds that
keeping features took, once and before all rounds. Plain PyTorch is timed on a few silos: it takes as long for each.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from coterie.data.silo import Part, Silo
from coterie.engine.kept import keep_features
from coterie.engine.method import Cohort
from coterie.engine.rehearsal import held_at_peak
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.store import Store
from coterie.engine.training import Training
from coterie.methods.fedavg import FedAvg
from coterie.models import build
from coterie.models.parts import Blueprint

HEAD = {"freeze": ["*"], "train": ["head"]}
FEW = 10  # silos of plain PyTorch
ADAPTERS = {"lora": {"rank": 8, "alpha": 16.0, "targets": ["*.query", "*.value"]}}


@dataclass(frozen=True)
class Work:
    """A base, what of it trains, and on how many samples of how many silos."""

    name: str
    base: dict[str, Any]
    parts: dict[str, Any]
    shape: tuple[int, ...]
    classes: int
    silos: int
    samples: int
    batch: int
    epochs: int
    tokens: bool = False

    def blueprint(self, everything: bool = False) -> Blueprint:
        """Makes the model."""
        return build(self.base | ({} if everything else self.parts), self.shape, self.classes)[0]

    def data(self) -> list[Silo]:
        """Noise: what is timed does not depend on it."""
        rng = np.random.default_rng(0)

        def part(count: int) -> Part:
            x = rng.integers(self.classes, size=(count, *self.shape))
            x = x if self.tokens else (x / self.classes).astype(np.float32)
            return Part(x, rng.integers(self.classes, size=count))

        return [Silo(f"silo-{i}", part(self.samples), part(1), part(1)) for i in range(self.silos)]

    def training(self, keep: bool) -> Training:
        """One round."""
        how = {"keep_features": "auto" if keep else False, "lr": 0.01, "momentum": 0.9}
        return Training(rounds=1, local_epochs=self.epochs, batch_size=self.batch, **how)  # type: ignore[arg-type]


RESNET = Work("ResNet-18, head", {"name": "resnet18"}, HEAD, (3, 32, 32), 10, 100, 320, 32, 5)
TRANSFORMER = Work(
    "transformer, LoRA of rank 8", {"name": "transformer", "width": 512, "heads": 8, "layers": 8}, ADAPTERS, (80,), 100,
    50, 64, 16, 1, tokens=True,
)  # fmt: skip
TOY = {
    RESNET.name: {"base": {"name": "resnet18", "width": 8}, "shape": (3, 8, 8), "silos": 4, "samples": 8, "batch": 4},
    TRANSFORMER.name: {
        "base": {"name": "transformer", "width": 16, "heads": 2, "layers": 2}, "shape": (8,), "silos": 3, "samples": 8,
        "batch": 4,
    },
}  # fmt: skip


def works(toy: bool) -> list[Work]:
    """What is timed."""
    return [replace(work, **TOY[work.name]) if toy else work for work in (RESNET, TRANSFORMER)]


def rows_round(
    work: Work, silos: Sequence[Silo], device: str, everything: bool, keep: bool
) -> tuple[Callable[[], None], int, float]:
    """One round of local training of all silos as rows, the length of a row, and the seconds that keeping took."""
    model = Model(work.blueprint(everything), work.classes, device)
    store = Store(silos, device)
    model.examine(store["train"].x)
    began = time.perf_counter()
    keep_features(model, store, "auto" if keep else False)
    _settle(device)
    once = time.perf_counter() - began
    engine = Simulator(FedAvg(), silos, model, work.training(keep), 0, "all", store, models=False)
    cohort = Cohort.everyone(engine.roster, model, 0)
    server = FedAvg().open(engine.roster, model)
    down = FedAvg().send(server, cohort)

    def call() -> None:
        engine.train(cohort, down)

    return call, model.width, once


def plain_round(work: Work, silos: Sequence[Silo], device: str, everything: bool) -> Callable[[], None]:
    """The same as people write it: a module and an optimiser for each silo, one silo after another."""
    start = work.blueprint(everything)().to(device)
    dtype = torch.int64 if work.tokens else torch.float32
    data = [(torch.from_numpy(s.train.x).to(device, dtype), torch.from_numpy(s.train.y).to(device)) for s in silos]

    def call() -> None:
        for x, y in data:
            module = copy.deepcopy(start).train()
            trained = [p for p in module.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(trained, 0.01, momentum=0.9)
            for _ in range(work.epochs):
                for index in torch.randperm(len(x), device=device).split(work.batch):
                    optimizer.zero_grad()
                    F.cross_entropy(module(x[index]), y[index]).backward()
                    optimizer.step()

    return call


def timed(call: Callable[[], None], device: str, repeats: int) -> tuple[float, int]:
    """Seconds of a call after a first, the median of some; and the most bytes that a GPU held meanwhile."""
    call()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    found = []
    for _ in range(repeats):
        _settle(device)
        began = time.perf_counter()
        call()
        _settle(device)
        found.append(time.perf_counter() - began)
    return float(np.median(found)), held_at_peak(torch.device(device))


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def lines(work: Work, device: str, repeats: int) -> Iterator[dict[str, Any]]:
    """All ways to do a work, each as soon as it was timed; plain PyTorch before what is set beside it."""
    silos = work.data()
    for everything in (False, True) if work.parts is HEAD else (False,):
        what = "everything" if everything else work.name.partition(", ")[2]
        few = silos[:FEW]
        seconds, memory = timed(plain_round(work, few, device, everything), device, repeats)
        seconds *= len(silos) / len(few)
        plain = {"work": work.name, "trained": what, "how": "plain PyTorch", "seconds": seconds, "times": 1.0}
        yield plain | {"width": None, "memory": memory, "once": 0.0}
        for keep in (True, False) if work.parts is HEAD and not everything else (False,):
            call, width, once = rows_round(work, silos, device, everything, keep)
            own, memory = timed(call, device, repeats)
            how = "rows, kept features" if keep else "rows"
            found = {"how": how, "seconds": own, "times": seconds / own, "width": width, "memory": memory, "once": once}
            yield plain | found
            del call
            if device == "cuda":
                torch.cuda.empty_cache()


def weights(work: Work) -> int:
    """Of the base."""
    module: nn.Module = work.blueprint(everything=True)()
    return sum(p.numel() for p in module.parameters())


def main() -> None:
    """Print a table, and with --json its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="sizes for a CPU")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="the work whose name begins so")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for work in works(given.toy):
        if given.only and not work.name.startswith(given.only):
            continue
        print(f"{work.name}: {work.silos} silos, {weights(work):,} weights in the base, on {device}", flush=True)
        for line in lines(work, device, given.repeats):
            width = "" if line["width"] is None else f"{line['width']:,} in a row"
            print(
                f"  {line['trained']:>18}  {line['how']:<20} {line['seconds']:9.3f} s  {line['times']:6.1f}×  "
                f"{line['memory'] / 1e9:6.2f} GB  {line['once']:6.2f} s once  {width}",
                flush=True,
            )
            if given.json:
                print(json.dumps(line))


if __name__ == "__main__":
    main()
