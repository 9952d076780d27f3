"""Models held once: the arithmetic of picks, and that no method ever holds a copy per silo (APPLE, FedFomo)."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import close

from coterie.keys import generator
from coterie.methods.parts.bank import mixture, products


def test_mixtures_and_products_go_by_the_picks() -> None:
    draw = generator(0, "bank")
    bank, rows, weights = (torch.from_numpy(draw.normal(size=size)) for size in ((4, 6), (3, 6), (3, 5)))
    picks = torch.tensor([[0, 1, 2, 3, -1], [2, -1, 2, -1, 0], [-1, -1, -1, -1, -1]])
    mixed, inner = np.zeros((3, 6)), np.zeros((3, 5))
    for i in range(3):
        for j in range(5):
            if picks[i, j] >= 0:
                mixed[i] += weights[i, j].item() * bank[picks[i, j]].numpy()
                inner[i, j] = rows[i].numpy() @ bank[picks[i, j]].numpy()
    close(mixture(bank, picks, weights), mixed)
    close(products(rows, bank, picks), inner)


def test_an_empty_bank_mixes_to_nothing() -> None:
    picks = torch.full((2, 3), -1)
    assert not mixture(torch.zeros(0, 4), picks, torch.ones(2, 3)).any()
    assert not products(torch.ones(2, 4), torch.zeros(0, 4), picks).any()


# A process of its own, so that its peak is its own; VmHWM, because ru_maxrss starts from that of the parent.
PEAK = """
import ctypes, json, re, sys
import numpy as np
import torch
from torch import nn
from coterie.data.silo import Part, Silo
from coterie.engine.memory import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.methods import make

def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read()).group(1)) / 1024

torch.set_num_threads(1)
draw = np.random.default_rng(0)
def part(n):
    return Part(draw.normal(size=(n, 1000)).astype(np.float32), draw.integers(100, size=n))
silos = [Silo(f"silo-{i:02d}", part(4), part(2), part(2)) for i in range(60)]
model = Model(lambda: nn.Linear(1000, 100), 100)
training = Training(rounds=2, local_epochs=1, batch_size=4, measure=("test",))
name, options = sys.argv[1], json.loads(sys.argv[2])
before = peak()
method = make(name, options)
engine = Simulator(method, silos, model, training, seed=0)
for knob in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):  # large blocks from the system and back: a heap's pieces are chance
    ctypes.CDLL(None).mallopt(knob, 1 << 20)
run_rounds(method, engine, engine.roster, model, training)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize(
    ("name", "options"),
    [("apple", "{}"), ("apple", '{"budget": 45}'), ("fedfomo", "{}")],
    ids=["apple", "apple-45", "fedfomo"],
)
def test_sixty_silos_never_hold_a_copy_of_the_models_each(name: str, options: str) -> None:
    run = subprocess.run([sys.executable, "-c", PEAK, name, options], capture_output=True, text=True, check=True)
    copies = 60 * (45 if "budget" in options else 59) * 100_100 * 4 / 2**20  # k × M × d in MiB
    assert float(run.stdout) < copies / 2, "the models were copied for every silo"
