"""What a step costs on a GPU, kernel by kernel: `python bench/step_profile.py cnn-62 [resnet18-25 …]`."""

import sys
import time

import torch
from speed import ours
from torch.profiler import ProfilerActivity, profile
from works import WORKS

SHOWN = 28  # kernels


def shares(name: str) -> None:
    """Print the wall time of a step of all silos, and what its largest kernels take of it."""
    work = next(work for work in WORKS if work.name == name)
    round, _ = ours(work, "cuda")
    for _ in range(3):
        round()
    torch.cuda.synchronize()
    began = time.perf_counter()
    round()
    torch.cuda.synchronize()
    wall = 1e3 * (time.perf_counter() - began) / work.steps
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        round()
        torch.cuda.synchronize()
    kernels = sorted(found.key_averages(), key=lambda each: -each.self_device_time_total)
    total = sum(each.self_device_time_total for each in kernels) / 1e3 / work.steps
    print(f"{name}: {wall:.2f} ms a step, kernels {total:.2f}; {wall / work.silos:.4f} ms for a silo")
    for each in kernels[:SHOWN]:
        print(
            f"{each.self_device_time_total / 1e3 / work.steps:8.3f} ms {each.count / work.steps:6.1f}x {each.key[:100]}"
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or ["cnn-62"]:
        shares(name)
