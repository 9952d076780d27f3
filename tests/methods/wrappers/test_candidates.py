"""Candidates are runs of their own, whatever the method: the same models to the last digits, in one call."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.conformance import (
    CHECKS,
    CLASSES,
    FEATURES,
    Ground,
    check_every_field_matters,
    check_newcomers,
    ground_of,
    predictions,
    small_silos,
)
from coterie.engine.method import Cohort, Method
from coterie.engine.simulate import Simulator
from coterie.engine.task import Batch, Task
from coterie.engine.training import Training
from coterie.methods import METHODS, make
from coterie.methods.fedavg import FedAvg
from coterie.methods.wrappers.candidates import Candidates, each
from coterie.methods.wrappers.personal import local_buffers

RATES = (0.05, 0.4)
TRAINING = Training(rounds=3, local_epochs=1, batch_size=4, lr=1.0)
OPTIMIZERS = {"momentum": {"momentum": 0.9}, "adam": {"optimizer": "adam"}}
COHORTS = ([0, 1, 2, 3], [2, 0], [3, 1, 2])  # by round: silos come and go


def train(ground: Ground) -> tuple[Any, Simulator]:
    """A few rounds with some of the silos."""
    engine = ground.engine()
    server = ground.method.open(engine.roster, engine.model)
    for r, ids in enumerate(COHORTS):
        cohort = Cohort(torch.tensor(ids), r, engine.roster, engine.model)
        down = ground.method.send(server, cohort)
        up = engine.train(cohort, down).up
        server = ground.method.receive(server, cohort, ground.method.unpacked(down, up))
    return server, engine


def assert_candidates_are_runs(method: Method, training: Training, rates: tuple[float, ...] = RATES) -> None:
    ground = replace(ground_of(method), training=training)
    server, engine = train(replace(ground, method=Candidates(method, rates)))
    for rate, mine, kept in zip(rates, each(server), each(engine.private()), strict=True):
        alone = replace(ground, training=replace(training, lr=training.lr * rate))
        expected, other = train(alone)
        for found, wanted in ((mine, expected), (kept, other.private())):
            for name, tensor in wanted.tensors().items():
                assert_close(found.tensors()[name], tensor)
        wanted = predictions(alone, other, expected)
        other._private = kept
        assert_close(predictions(alone, other, mine), wanted)


def assert_close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", METHODS)
def test_every_candidate_is_a_run_of_its_own(name: str, optimizer: str) -> None:
    assert_candidates_are_runs(make(name, {}), replace(TRAINING, **OPTIMIZERS[optimizer]))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {"privacy": {"level": "record", "clip": 0.5, "noise": 0.5}}),
        ("ditto", {"privacy": {"level": "record", "clip": 0.5, "noise": 0.5}}),
        ("apple", {"budget": 2}),
        ("pfedme", {"lam": 0.5}),
        ("ditto", {"personal_epochs": 1}),
        ("fedamp", {"warmup_epochs": 1}),
    ],
)
def test_options_that_change_the_state(name: str, options: dict[str, Any]) -> None:
    assert_candidates_are_runs(make(name, options), TRAINING)


def with_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, CLASSES))


@pytest.mark.parametrize("local", [False, True])
def test_models_whose_samples_are_coupled_and_statistics_that_stay_local(local: bool) -> None:
    ground = Ground(FedAvg(), with_statistics, small_silos(sizes=(14, 8, 22, 6)), TRAINING)
    method = local_buffers(FedAvg(), ground.model()) if local else FedAvg()
    server, engine = train(replace(ground, method=Candidates(method, RATES)))
    for rate, mine, kept in zip(RATES, each(server), each(engine.private()), strict=True):
        wanted, other = train(replace(ground, method=method, training=replace(TRAINING, lr=rate)))
        assert_close(mine.w, wanted.w)
        for name, tensor in other.private().tensors().items():
            assert_close(kept.tensors()[name], tensor)


def test_a_schedule_lowers_every_rate() -> None:
    assert_candidates_are_runs(FedAvg(), replace(TRAINING, schedule="cosine"))


@dataclass(frozen=True)
class OwnArithmetic(FedAvg):
    """Multiplies with the rate itself, which works for one number alone."""

    def step(self, task: Task, state: Any, batch: Batch) -> Any:
        assert isinstance(batch.lr, float)
        return state.replace(w=state.w - batch.lr * task.grad(state.w, batch).grads)


def test_a_method_that_takes_one_rate_steps_its_candidates_one_after_another() -> None:
    assert_candidates_are_runs(OwnArithmetic(), TRAINING)


@pytest.mark.parametrize("name", METHODS)
def test_a_candidate_that_diverges_leaves_the_others_alone(name: str) -> None:
    ground = replace(ground_of(make(name, {})), training=TRAINING)
    both, engine = train(replace(ground, method=Candidates(ground.method, (0.1, 1e200))))
    alone, other = train(replace(ground, training=replace(TRAINING, lr=0.1)))
    for found, wanted in ((each(both)[0], alone), (each(engine.private())[0], other.private())):
        for key, tensor in wanted.tensors().items():
            assert_close(found.tensors()[key], tensor)


def test_candidates_share_a_step() -> None:
    calls = list[int]()

    class Counting(FedAvg):
        lr_by_row = True

        def step(self, task: Task, state: Any, batch: Batch) -> Any:
            calls.append(task.k)
            return super().step(task, state, batch)

    ground = replace(ground_of(FedAvg()), training=TRAINING)
    train(replace(ground, method=Counting()))
    alone = list(calls)
    calls.clear()
    train(replace(ground, method=Candidates(Counting(), (0.1, 0.2, 0.3))))
    assert calls == [3 * k for k in alone]


# None of them trains newcomers, and what all but the first deploy is never asked for.
FITTING = [check for check in CHECKS if check not in (check_newcomers, check_every_field_matters)]


@pytest.mark.parametrize("check", FITTING, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["fedavg", "apple", "scaffold", "fedem"])
def test_candidates_pass_the_suite_through_the_wire_too(name: str, check: Callable[[Ground], None]) -> None:
    method = make(name, {"budget": 2} if name == "apple" else {})
    check(replace(ground_of(method), method=Candidates(method, (1.0, 0.5))))
