"""A run that several processes kept goes on in another number of them, and ends as if it had never stopped."""

import pytest
from spawned import over_processes

TRAINED = """
import os, sys
from dataclasses import replace
from pathlib import Path
import numpy as np, torch
from torch import nn
from coterie.engine import ranks
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.sharded import Sharded
from coterie.engine.simulate import Simulator
from coterie.errors import Stopped
from coterie.methods import make
from coterie.runs.checkpoint import Checkpoint
from plain import TRAINING, make_silos

folder, until, methods = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
silos = make_silos(sizes=(7, 10, 6), validation=(4, 9, 5))
training = replace(TRAINING, rounds=4, participation=0.7, norm_limit=0.0)

def build():
    return nn.Sequential(nn.Linear(5, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 3))

def trained(kind, name, keeper=None, on_round=lambda progress: None):
    model = Model(build, 3, dtype=torch.float64)
    model.probe(torch.from_numpy(silos[0].train.x[:4]).double())
    engine = kind(make(name, {}), silos, model, training, 1)
    return engine, run_rounds(engine.method, engine, engine.roster, model, training, on_round, keeper)

def lost(progress):
    if progress.round == until and ranks.rank() == ranks.count() - 1:
        os._exit(0)  # as if it had been killed

for name in methods:
    keeper, began = Checkpoint(folder / name, name, 1, every=1), list[int]()
    if until:
        try:
            trained(Sharded, name, keeper, lost)
        except Stopped:
            print("stopped")
        os._exit(0)
    kind = Sharded if ranks.count() > 1 else Simulator
    several, outcome = trained(kind, name, keeper, lambda progress: began.append(progress.round))
    assert began[0] >= 2, began
    whole, one = trained(Simulator, name)
    here = [i for i in several.held(silos) if ranks.count() == 1 or several.deal.owner[i] == several.deal.rank]
    for key, value in whole.private().tensors().items():
        torch.testing.assert_close(value[here], several.private().tensors()[key][: len(here)], atol=1e-9, rtol=0)
    assert outcome.picked.round == one.picked.round
    for key, value in one.models.tensors().items():
        torch.testing.assert_close(value[here], outcome.models.tensors()[key][: len(here)], atol=1e-9, rtol=0)
    print("as one")
"""


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("before", "method", "after"),
    [(2, "fedamp", 1), (2, "fedamp", 3), (3, "ditto", 2), (2, "knn-per", 1), (2, "stack", 3)],
)
def test_a_run_whose_process_was_lost_goes_on_in_any_number_of_them(before, method, after, tmp_path):
    said = over_processes(before, TRAINED, tmp_path, 3, method)
    assert said[:-1] == ["stopped\n"] * (before - 1)
    assert over_processes(after, TRAINED, tmp_path, 0, method) == ["as one\n"] * after


@pytest.mark.slow
@pytest.mark.soak
def test_what_one_process_kept_several_go_on_with(tmp_path):
    alone = TRAINED.replace("trained(Sharded, name, keeper, lost)", "trained(Simulator, name, keeper, lost)")
    over_processes(1, alone, tmp_path, 2, "apple")
    assert over_processes(2, TRAINED, tmp_path, 0, "apple") == ["as one\n"] * 2
