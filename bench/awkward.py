"""The suite of awkward modules on a GPU: rows, compiled and by Triton's kernels, against a plain loop on the CPU.

    python bench/awkward.py [--device cuda] [--jobs N]

A module that plain PyTorch cannot call on the GPU either (it makes tensors on the CPU) is refused. Float32 on both
sides, so equal means equal to 1e-3 of the largest weight; on a CPU `tests/engine/test_awkward.py` holds the same
modules to 1e-9 in float64.
"""

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "engine")]

from awkward import TRAINED  # noqa: E402
from plain import CLASSES, TRAINING, by_steps  # noqa: E402
from test_awkward import TRAIN, row_of, silos_for, trained_alone  # noqa: E402

from coterie.engine.rows import Model  # noqa: E402
from coterie.engine.simulate import Simulator  # noqa: E402
from coterie.errors import BadInput  # noqa: E402
from coterie.methods.fedavg import FedAvg  # noqa: E402


def furthest(name: str, device: str) -> tuple[str, float]:
    """How the module runs over rows, and how far a weight is from the plain loop's, of the largest."""
    silos, training = silos_for(name), replace(TRAINING, **(TRAIN | {"local_epochs": 1}))
    engines = [
        Simulator(FedAvg(), silos, Model(TRAINED[name], CLASSES, where, torch.float32), training, 1)
        for where in (device, "cpu")
    ]
    task = by_steps(engines[0])
    task = replace(task, silos=task.silos.to(device))
    start = task.start()
    ours = task.fit(start, "train").cpu()
    far = 0.0
    for place, silo in enumerate(task.silos.tolist()):
        plain = row_of(engines[1].model, trained_alone(TRAINED[name], engines[1], silos[silo], start[place].cpu()))
        far = max(far, float((ours[place] - plain).abs().max() / plain.abs().max()))
    return engines[0].model.way, far


def main() -> None:
    """Print every module that is not the same, and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--part", type=int, help="one of the jobs' parts, by itself")
    options = parser.parse_args()
    if options.part is None:
        parts = [
            subprocess.Popen([sys.executable, __file__, "--device", options.device, "--jobs", str(options.jobs),
                              "--part", str(part)])
            for part in range(options.jobs)
        ]  # fmt: skip
        sys.exit(max(part.wait() for part in parts))
    torch.set_float32_matmul_precision("highest")
    console, wrong = Console(width=120), 0
    for name in list(TRAINED)[options.part :: options.jobs]:
        try:
            way, far = furthest(name, options.device)
            verdict = "same" if far < 1e-3 else "OTHER"
            console.print(f"{verdict} {name} ({way}): {far:.1e}")
        except BadInput as error:
            verdict = "refused"
            console.print(f"refused {name}: {error}")
        except Exception as error:
            verdict = "FAILED"
            console.print(f"FAILED {name}: {type(error).__name__} {str(error).splitlines()[0] if str(error) else ''}")
        wrong += verdict not in ("same", "refused")
    sys.exit(int(wrong > 0))


if __name__ == "__main__":
    main()
