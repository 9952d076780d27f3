"""How fast: ours against plain sequential PyTorch and against the hardware's own limit, in one run.

    python bench/speed.py [--device cpu|cuda] [--only NAME] [--repeat N] [--ours]

Every figure is the median of several rounds of both sides, taken in turn so that a noisy machine is noisy to both.
--ours leaves out the sequential side, which takes most of the time, and prints each work's spread instead.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from sequential import sequential
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from works import WORKS, Work

from coterie.engine.method import Cohort
from coterie.engine.rows import COMPARED, Model
from coterie.engine.simulate import Simulator


def ours(work: Work, device: str) -> tuple[Callable[[], None], int]:
    """One round of local training of every silo, and the rows per call."""
    model = Model(work.factory(), work.classes, device, precision=work.precision)
    silos = work.data()
    model.probe(torch.from_numpy(silos[0].train.x[:COMPARED]).to(device))
    engine = Simulator(work.method, silos, model, work.training(), 0, "auto")
    cohort = Cohort(torch.arange(work.silos, device=device), 0, engine.roster, engine.model)
    down = work.method.send(work.method.open(engine.roster, model), cohort)
    return lambda: (engine.train(cohort, down), None)[1], engine.rows


def seconds(round: Callable[[], None], device: str) -> float:
    """How long one round takes."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    round()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def flops(work: Work) -> int:
    """Floating-point operations of one mini-batch of one client, forward and backward."""
    module = work.factory()()
    silo = work.data()[0].train
    x, y = torch.from_numpy(silo.x[: work.batch]), torch.from_numpy(silo.y[: work.batch])
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(module(x), y).backward()
    return int(counter.get_total_flops())


def ceiling(device: str, precision: str) -> float:
    """TFLOP/s of a large matrix product on random data."""
    size, kind = (8192, torch.bfloat16) if precision == "bf16" else (8192 if device == "cuda" else 2048, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    for _ in range(3):
        a @ b
    times = [seconds(lambda: (a @ b, None)[1], device) for _ in range(10)]
    return 2 * size**3 / statistics.median(times) / 1e12


def measured(work: Work, device: str, repeat: int) -> dict[str, object]:
    """Both sides in turn."""
    mine, rows = ours(work, device)
    theirs = sequential(work, device)
    for round in (mine, mine, theirs):
        round()
    both = [(seconds(mine, device), seconds(theirs, device)) for _ in range(repeat)]
    client_steps = work.silos * work.steps
    ours_ms, sequential_ms = (1e3 * statistics.median(side) / client_steps for side in zip(*both, strict=True))
    ratios = [b / a for a, b in both]
    tflops = flops(work) / ours_ms / 1e9
    return {
        "work": work.name,
        "device": device,
        "ours_ms": ours_ms,
        "sequential_ms": sequential_ms,
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "tflops": tflops,
        "ceiling": tflops / ceiling(device, work.precision),
        "rows": rows,
        "precision": work.precision,
    }


def ours_alone(work: Work, device: str, repeat: int) -> str:
    """Our side, without the other."""
    mine, rows = ours(work, device)
    for round in (mine, mine):
        round()
    times = sorted(1e3 * seconds(mine, device) / (work.silos * work.steps) for _ in range(repeat))
    return f"{work.name}: {statistics.median(times):.4f} ms ({times[0]:.4f}–{times[-1]:.4f}), {rows} rows"


def main() -> None:
    """Print the table and write it to bench/out/latest.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--only", help="one work by its name, also one of the other device, or one that is left out by itself"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ours", action="store_true", help="our side alone")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    lines = []
    for work in WORKS:
        if options.only == work.name or not (options.only or work.asked or work.device != options.device):
            here = replace(work, precision="float32") if options.device == "cpu" else work
            if options.ours:
                print(ours_alone(here, options.device, options.repeat), flush=True)
                continue
            lines.append(measured(here, options.device, options.repeat))
    if options.ours:
        return
    table = Table(title="One mini-batch of one client (ms)")
    for heading in ("work", "ours", "sequential", "ratio (spread)", "TFLOP/s", "of the ceiling", "rows", "precision"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    for line in lines:
        spread = f"{line['ratio']:.1f} ({line['ratio_low']:.1f}–{line['ratio_high']:.1f})"
        table.add_row(
            str(line["work"]), f"{line['ours_ms']:.4f}", f"{line['sequential_ms']:.4f}", spread,
            f"{line['tflops']:.3g}", f"{line['ceiling']:.1%}", str(line["rows"]), str(line["precision"]),
        )  # fmt: skip
    Console(width=120).print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "latest.json").write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
