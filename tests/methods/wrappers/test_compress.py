"""Compression: fewer bytes leave, what is left out leaves later, and the server reads what was sent."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle import Oracle, close
from torch import nn

from coterie.codec import decode, encode, encode_up
from coterie.conformance import CHECKS, Ground, Wired, ground_of, small_silos, trained
from coterie.engine.judge import alike
from coterie.engine.method import Cohort
from coterie.errors import BadInput
from coterie.methods import METHODS, make, written
from coterie.methods.wrappers.compress import BLOCK, BytesUp, SparseUp, as_bytes, opened
from coterie.wire import described

FITTING = {
    "fedper", "lg-fedavg", "fedrep", "fedbabu", "fedbn", "fedrod", "knn-per", "fedsa-lora", "ffa-lora",
    "fedavg", "fedprox", "fedavg-local", "fedavg-ft", "fedprox-ft", "scaffold", "apfl", "ditto", "perfedavg", "pfedme",
    "cfl", "fedamp", "heurfedamp", "fedacs", "fedem", "mr-mtl", "pfedgraph", "fedala",
}  # fmt: skip
WRAPPED = {
    "sparse-fedavg": ("fedavg", {"compress": {"top_k": 0.2}}),
    "sparse-scaffold": ("scaffold", {"compress": {"top_k": 0.2}}),
    "sparse-fedem": ("fedem", {"compress": {"top_k": 0.2}}),
    "bytes-fedamp": ("fedamp", {"compress": {"bits": 8}}),
    "private-sparse-robust": ("fedavg", {"privacy": {"noise": 0.01}, "compress": {"top_k": 0.2}, "robust": {}}),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_conformance(wrapped: str, check: Callable[[Ground], None]) -> None:
    check(Ground(make(*WRAPPED[wrapped])))


def test_the_largest_numbers_leave_and_the_rest_waits_for_the_next_round() -> None:
    """Two rounds of FedAvg against NumPy: change plus residual, its largest fifth sent, the rest kept."""
    oracle = Oracle()
    played = oracle.play(make("fedavg", {"compress": {"top_k": 0.2}}), rounds=2)
    sizes = np.array([len(oracle.data(silo)[1]) for silo in range(3)])
    w, residual = oracle.start(), np.zeros((3, len(oracle.start())))
    for r in range(2):
        trained_to = np.stack([oracle.descend(silo, w, r) for silo in range(3)])
        whole = trained_to - w + residual
        sent = np.zeros_like(whole)
        for silo, row in enumerate(whole):
            largest = np.argsort(-np.abs(row))[: int(np.ceil(0.2 * len(row)))]
            sent[silo, largest] = row[largest]
        residual, w = whole - sent, w + np.average(sent, axis=0, weights=sizes)
        close(oracle.vector(played.servers[r + 1].w), w)


def test_everything_leaves_uncut_with_top_k_one() -> None:
    whole, plain = (Ground(make("scaffold", options)) for options in ({"compress": {"top_k": 1.0}}, {}))
    assert torch.allclose(trained(whole, whole.engine())[1], trained(plain, plain.engine())[1], atol=1e-12)


@pytest.mark.parametrize("options", [{"bits": 8}, {"top_k": 0.2}])
@pytest.mark.parametrize("entry", [3e38, math.inf, math.nan])
def test_a_change_that_is_no_number_does_not_leave_as_one(entry: float, options: dict[str, float]) -> None:
    """The judge rejects what is not finite, and the silo goes back to where it was."""
    method = make("fedavg", {"compress": options})
    model = Ground(method).engine().model
    trained_to = torch.zeros(1, model.width)
    trained_to[0, 1] = entry
    packed, _ = method._packed(model, method.method.up(w=trained_to), method.down(w=torch.zeros(model.width)), None)
    finite = all(bool(t.isfinite().all()) for t in packed.tensors().values())
    assert finite == math.isfinite(entry)


@pytest.mark.parametrize("columns", [5, BLOCK, BLOCK + 1])
def test_a_byte_is_off_by_half_a_step_of_its_block_at_most(columns: int) -> None:
    whole = torch.from_numpy(np.random.default_rng(columns).normal(size=(3, columns)))
    packed = as_bytes(whole)
    assert packed.codes.shape == whole.shape and packed.codes.dtype == torch.int8
    step = packed.scales.repeat_interleave(BLOCK, 1)[:, :columns]
    assert ((opened(packed, columns, torch.float64) - whole).abs() <= step / 2 + 1e-15).all()
    assert (packed.scales * 127 <= whole.abs().max() + 1e-12).all()


def test_a_change_of_nothing_is_nothing() -> None:
    assert torch.equal(opened(as_bytes(torch.zeros(2, 9)), 9, torch.float32), torch.zeros(2, 9))


@pytest.mark.parametrize(("options", "share"), [({"top_k": 0.05}, 0.11), ({"bits": 8}, 0.28)])
def test_the_bytes_that_cross_are_fewer_as_encoded_and_as_counted(options: dict[str, object], share: float) -> None:
    sizes = {}
    for name, table in (("plain", {}), ("packed", {"compress": options})):
        method = make("fedavg", table)
        ground = Ground(method, build=lambda: nn.Linear(5, 400))
        engine = ground.engine()
        model = engine.model
        cohort = Cohort(torch.arange(4), 0, engine.roster, engine.model)
        replies = engine.train(cohort, method.send(method.open(engine.roster, model), cohort))
        up = replies.up.one(0).map(lambda t: t.float() if t.is_floating_point() else t)  # as a silo has it
        sizes[name] = (len(encode_up(up)), up.nbytes(), replies.bytes_up)
        assert type(decode(method.up, encode(up))) is type(up)
    assert sizes["packed"][1] <= share * sizes["plain"][1]
    assert sizes["packed"][0] <= share * sizes["plain"][0] + 200  # the names of the fields
    assert sizes["packed"][2] < sizes["plain"][2] / 2


@pytest.mark.parametrize("name", METHODS)
def test_methods_without_a_change_of_a_model_refuse(name: str) -> None:
    """A study prepares the wrapped method's silos before it asks, so that must not fail first."""
    ground = ground_of(make(name, {}))
    for options in ({"top_k": 0.1}, {"bits": 8}):
        engine = replace(ground, method=make(name, {"compress": options})).engine()
        reason = engine.method.refusal(engine.roster, engine.model)
        assert (reason is None) == (name in FITTING), reason


@pytest.mark.parametrize("options", [{"top_k": 0.3}, {"bits": 8}], ids=str)
@pytest.mark.parametrize("name", ["fedem", "scaffold", "cfl"])
def test_declared_shapes_are_those_that_leave(name: str, options: dict[str, object]) -> None:
    ground = Ground(make(name, {"compress": options}))
    engine = ground.engine()
    cohort = Cohort(torch.arange(4), 0, engine.roster, engine.model)
    method = ground.method
    up = engine.train(cohort, method.send(method.open(engine.roster, engine.model), cohort)).up
    axes = method.axes(engine.roster, engine.model)
    assert {axis for about in described(up).values() for axis in about.axes} <= axes.keys()
    assert alike({str(i): up.take(slice(i, i + 1)) for i in range(4)}, axes, engine.model) == {}


def test_statistics_leave_whole() -> None:
    ground = Ground(
        make("fedavg", {"compress": {"top_k": 0.01}}),
        build=lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        silos=small_silos(sizes=(8, 8, 4, 4)),
    )
    engine = ground.engine(kind=Wired)
    model = engine.model
    cohort = Cohort(torch.arange(4), 0, engine.roster, engine.model)
    up = engine.train(cohort, ground.method.send(ground.method.open(engine.roster, model), cohort)).up
    assert isinstance(up, SparseUp)
    assert set(range(model.layout.trained, model.width)) <= set(up.columns[0].tolist())
    assert up.columns.shape[1] == 1 + model.width - model.layout.trained


def test_columns_that_do_not_exist_do_not_end_the_server() -> None:
    wild = SparseUp(values=torch.ones(1, 3), columns=torch.tensor([[-7, 10**6, 2**31 - 1]], dtype=torch.int32))
    assert opened(wild, 10, torch.float32).isfinite().all()


@pytest.mark.parametrize("options", [{}, {"top_k": 0.1, "bits": 8}, {"bits": 4}, {"top_k": 0.0}])
def test_one_way_of_compressing_must_be_given(options: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        make("fedavg", {"compress": options})


def test_a_compressed_method_is_written_back_whole() -> None:
    table = {"mu": 0.5, "privacy": {"level": "silo", "clip": 2.0, "noise": 1.0, "delta": 1e-6}, "compress": {"bits": 8}}
    table |= {"robust": {"rule": "krum", "rogue": 2}}
    assert written("mine", make("mine", table | {"method": "fedprox"})) == table | {"method": "fedprox"}
    assert BytesUp is make("mine", table | {"method": "fedprox"}).up
