"""Steps that are recorded once and replayed, against the same steps launched one by one, in one run on a GPU.

    python bench/recorded.py [--repeat N]

The CNN of the FedAMP studies at several numbers of silos, and the APPLE study's with one silo that has most data.
"""

import argparse
import statistics
import time
from dataclasses import replace

import torch
from works import WORKS, Work

from coterie.data.silo import Part, Silo
from coterie.engine import recorded
from coterie.engine.method import Cohort, Method
from coterie.engine.rows import COMPARED, Model
from coterie.engine.simulate import Simulator
from coterie.methods.apple import APPLE
from coterie.methods.fedavg import FedAvg

CNN = next(work for work in WORKS if work.name == "cnn-62")
SMALL = replace(
    CNN, model={"name": "cnn-apple"}, classes=10, batch=256, optimizer="sgd", precision="float32", batches=80
)


def uneven(silos: list[Silo]) -> list[Silo]:
    """The first has all its samples, the second an eighth, the others an eightieth."""

    def cut(silo: Silo, n: int) -> Silo:
        return Silo(silo.name, Part(silo.train.x[:n], silo.train.y[:n]), silo.validation, silo.test)

    sizes = [len(silos[0].train.y), len(silos[0].train.y) // 8, *[len(silos[0].train.y) // 80] * (len(silos) - 2)]
    return [cut(silo, n) for silo, n in zip(silos, sizes, strict=True)]


def rounds(work: Work, method: Method, silos: list[Silo], repeat: int) -> tuple[list[float], torch.Tensor]:
    """Seconds of some rounds of local training after a first one, and what the silos then sent."""
    model = Model(work.factory(), work.classes, "cuda", precision=work.precision)
    model.probe(torch.from_numpy(silos[0].train.x[:COMPARED]).to("cuda"))
    engine = Simulator(method, silos, model, work.training(), 0)
    cohort = Cohort(torch.arange(len(silos), device="cuda"), 0, engine.roster, engine.model)
    down = method.send(method.open(engine.roster, model), cohort)
    found = []
    for _ in range(repeat + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        up = engine.train(cohort, down).up
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return found[1:], torch.cat([t.flatten().double() for t in up.tensors().values()])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--repeat", type=int, default=5)
    repeat = options.parse_args().repeat
    least = recorded.LEAST
    cases = [
        (f"cnn, {n} silos, {type(CNN.method).__name__}", replace(CNN, silos=n), CNN.method, False)
        for n in (1, 12, 20, 62)
    ]
    small = replace(SMALL, silos=12)
    cases += [
        (f"cnn-apple, 12 uneven silos, {type(m).__name__}", small, m, True)
        for m in (FedAvg(), APPLE(mu=0.0, dr_momentum=0.9))
    ]
    print(f"{'':42} {'one by one':>12} {'recorded':>12} {'ratio':>7}  apart")
    for name, work, method, ragged in cases:
        silos = uneven(work.data()) if ragged else work.data()
        steps = -(-len(silos[0].train.y) // work.batch) * work.training().local_epochs
        times, ups = {}, {}
        for way, steps_needed in (("one by one", 10**9), ("recorded", least)):
            recorded.LEAST = steps_needed
            seconds, ups[way] = rounds(work, method, silos, repeat)
            times[way] = 1e3 * statistics.median(seconds) / steps
        apart = float((ups["one by one"] - ups["recorded"]).abs().max())
        ratio = times["one by one"] / times["recorded"]
        print(
            f"{name:42} {times['one by one']:9.3f} ms {times['recorded']:9.3f} ms {ratio:7.2f}  {apart:.1e}", flush=True
        )
    print("not recorded:", sorted(recorded._impossible) or "none")


if __name__ == "__main__":
    main()
