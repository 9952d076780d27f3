"""A round is rehearsed before a run, to say how much memory it will take."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from plain import CLASSES, make_engine, make_silos
from torch import nn

from coterie.engine.rehearsal import peak_memory
from coterie.engine.rounds import run_rounds
from coterie.methods import make
from coterie.methods.fedavg import FedAvg


def small() -> nn.Module:
    return nn.Linear(5, CLASSES)


def test_a_rehearsal_changes_nothing() -> None:
    compressed = make("fedavg", {"compress": {"bits": 8}})
    for method in (make("scaffold", {}), make("fedem", {}), make("apple", {}), compressed):
        plain, rehearsed = (make_engine(small, make_silos((7, 14, 3)), method, "all", rounds=2) for _ in range(2))
        peak_memory(rehearsed)
        for name, tensor in plain.private().tensors().items():
            assert torch.equal(tensor, rehearsed.private().tensors()[name])
        results = [run_rounds(e.method, e, e.roster, e.model, e.training).results[-1] for e in (plain, rehearsed)]
        assert results[0].equals(results[1])


def rows_at_each_step(silos: tuple[int, ...], **train: Any) -> list[int]:
    taken = []

    class Counting(FedAvg):
        def step(self, task: Any, state: Any, batch: Any) -> Any:
            taken.append(task.k)
            return super().step(task, state, batch)

    peak_memory(make_engine(small, make_silos(silos), Counting(), "all", rounds=2, **train))
    return taken


def test_a_rehearsal_takes_two_steps_of_each_of_two_rounds() -> None:
    assert rows_at_each_step((70, 60), local_epochs=9) == [2, 2, 2, 2]


def test_a_rehearsal_asks_as_many_silos_as_the_rounds_do() -> None:
    assert rows_at_each_step((40, 40, 40, 40), drop=0.5) == [2, 2, 2, 2]
    assert rows_at_each_step((40, 40, 40, 40), participation=0.25) == [1, 1, 1, 1]


TRUTH = """
import ctypes, resource, torch
from torch import nn
from plain import CLASSES, make_engine, make_silos
from coterie.engine.memory import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
from coterie.engine.rehearsal import peak_memory
from coterie.engine.rounds import run_rounds
from coterie.methods import make
wide = lambda: nn.Sequential(nn.Linear(5, 60_000), nn.ReLU(), nn.Linear(60_000, CLASSES))
e = make_engine(wide, make_silos((60, 50, 40, 20, 10)), make("fedamp", {}), "all", rounds=3, optimizer="adam")
for knob in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):  # large blocks from the system and back: a heap's pieces are chance
    ctypes.CDLL(None).mallopt(knob, 1 << 20)
stated = peak_memory(e)
run_rounds(e.method, e, e.roster, e.model, e.training)
print(stated, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_what_is_stated_is_within_a_quarter_of_the_truth() -> None:
    # in a process of its own: the most that a process ever held does not come down again
    # with one thread, whose memory is one heap: what the C library keeps of several is chance
    here = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    said = subprocess.run([sys.executable, "-c", TRUTH], env=here, capture_output=True, text=True, check=True)
    stated, truth = map(int, said.stdout.split())
    models = 5 * 60_000 * (5 + 1 + CLASSES) * np.dtype("float64").itemsize  # the tests' engines compute in float64
    assert truth > 4 * models
    assert abs(stated - truth) < truth / 4
