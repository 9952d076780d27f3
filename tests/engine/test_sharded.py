"""Silos that live in several processes: every method ends as in one, and no process holds what is another's."""

import pytest
import torch
from spawned import over_processes

from coterie.engine.across import all_silos, total

COMPARED = """
import copy, sys
import numpy as np, pandas as pd, torch
from torch import nn
from coterie.engine import ranks
from coterie.engine.method import Cohort
from coterie.engine.rounds import run_rounds, traces
from coterie.engine.over_processes import columnwise
from coterie.engine.sharded import Sharded
from coterie.engine.simulate import Simulator
from coterie.engine.rows import Model
from coterie.methods import make
from coterie.methods.wrappers.personal import local_buffers
from dataclasses import replace
from plain import make_silos, TRAINING

def build():
    return nn.Sequential(nn.Linear(5, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 3))

training = replace(TRAINING, participation=0.6)
KEYS = ["round", "silo", "split", "measure"]
for name in sys.argv[1:]:
    name, _, more = name.partition("+")
    found, silos = [], make_silos(sizes=(7, 10, 6), test=(6, 0, 6))
    if more == "rogue":
        silos[1] = replace(silos[1], train=replace(silos[1].train, x=silos[1].train.x * np.float32(1e9)))
    for kind in (Simulator, Sharded):
        model = Model(build, 3, dtype=torch.float64)
        model.probe(torch.from_numpy(silos[0].train.x[:4]).double())
        method = make(name, {})
        method = local_buffers(method, model) if more == "local" else method
        engine = kind(method, silos, model, training, 1)
        outcome = run_rounds(engine.method, engine, engine.roster, model, training)
        newcomers = kind(method, silos[:2], model, training, 1, models=False)
        outcome.results.append(newcomers.measured_newcomers(outcome.server))
        found.append((engine, outcome))
    (whole, one), (part, several) = found
    first, second = (pd.concat(o.results).sort_values(KEYS, ignore_index=True) for o in (one, several))
    pd.testing.assert_frame_equal(first, second, atol=1e-9, rtol=0)
    assert one.traces.keys() == several.traces.keys(), (name, one.traces.keys(), several.traces.keys())
    for key, value in traces(one).items():
        np.testing.assert_allclose(value, traces(several)[key], atol=1e-9, err_msg=f"{name} {key}")
    assert one.rejected == several.rejected and bool(one.rejected) == (more == "rogue"), (name, one.rejected)
    assert (one.bytes_up, one.bytes_down) == (several.bytes_up, several.bytes_down), name
    for split, each in one.picked.outputs.items():
        assert list(each) == list(several.picked.outputs[split]), name
    places = [i for i in part.deal.here() if part.deal.owner[i] == part.deal.rank]  # what stands in counts for nothing
    for key, value in whole.private().tensors().items():
        torch.testing.assert_close(value[places], part.private().tensors()[key][: len(places)], atol=1e-9, rtol=0)
    # No process has all rows of all columns, or another's data.
    assert list(part.store.names) == [silos[i].name for i in places or [0]]
    if columnwise(method):
        for key, value in several.server.tensors().items():
            assert value.numel() <= one.server.tensors()[key].numel() * (1 / ranks.count() + 0.25), (name, key)
print("compared", len(sys.argv) - 1)
"""
BY_COLUMNS = ["fedamp", "fedamp+local", "fedamp+rogue", "fedem", "scaffold", "ditto", "lg-fedavg"]
WHOLE = ["apple", "ifca"]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("count", "methods"), [(2, BY_COLUMNS + WHOLE), (4, ["fedamp+local", "fedem", "apple"])])
def test_every_method_ends_as_in_one_process(count, methods):
    """Four processes for three silos: one has none, and others none of some cohorts."""
    assert over_processes(count, COMPARED, *methods) == [f"compared {len(methods)}\n"] * count


def test_in_one_process_sums_and_silos_are_as_they_are():
    values = torch.arange(3.0)
    assert total(values) is values and all_silos(values) is values
