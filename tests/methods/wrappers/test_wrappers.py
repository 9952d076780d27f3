"""Wrappers: fine-tuning and clipping around any method they fit."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from oracle import Oracle, close

from coterie.conformance import CHECKS, Ground, ground_of, trained
from coterie.engine.method import Cohort, Method, Predictor
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.methods import METHODS, make, written
from coterie.methods.fedavg import FedAvg

WRAPPED = {
    "clipped-fedavg": ("fedavg", {"clip_update": {"norm": 0.3}}),
    "clipped-scaffold": ("scaffold", {"clip_update": {"norm": 0.3}}),
    "tuned-fedamp": ("fedamp", {"finetune": {"epochs": 2}}),
    "both": ("fedprox", {"finetune": {"epochs": 1}, "clip_update": {"norm": 0.3}}),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_conformance(wrapped: str, check: Callable[[Ground], None]) -> None:
    check(Ground(make(*WRAPPED[wrapped])))


def models(method: Method) -> torch.Tensor:
    """What the silos of the small federation predict after training."""
    ground = Ground(method)
    return trained(ground, ground.engine())[1]


def test_fedavg_fine_tuned_is_fedavg_ft() -> None:
    assert torch.equal(models(make("fedavg", {"finetune": {"epochs": 3}})), models(make("fedavg-ft", {"ft_epochs": 3})))


@pytest.mark.parametrize("name", ["fedavg", "fedamp", "scaffold", "cfl"])
def test_a_long_enough_clip_changes_nothing(name: str) -> None:
    assert torch.allclose(models(make(name, {"clip_update": {"norm": 1e6}})), models(make(name, {})), atol=1e-12)


def test_what_leaves_is_no_longer_than_the_clip_and_points_the_same_way() -> None:
    oracle = Oracle()
    free = oracle.play(make("fedavg", {}), rounds=1)
    bound = oracle.play(make("fedavg", {"clip_update": {"norm": 0.05}}), rounds=1)
    change, clipped = (oracle.vector(p.ups[0].w) - oracle.start() for p in (free, bound))
    lengths = (change**2).sum(1) ** 0.5
    assert (lengths > 0.05).all()
    close(clipped, change * (0.05 / lengths)[:, None])


@pytest.mark.parametrize("entry", [3e38, math.inf, math.nan])
def test_a_change_too_long_for_its_own_squares_is_clipped_and_one_that_is_no_number_stays_none(
    entry: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge rejects what is not finite: as zeros it would count."""
    method = make("fedavg", {"clip_update": {"norm": 2.0}})
    task = Ground(method).engine().task(torch.tensor([0]), 0)
    sent, trained_to = torch.zeros(task.model.width), torch.zeros(1, task.model.width)
    trained_to[0, :2] = entry
    monkeypatch.setattr(FedAvg, "end", lambda *given: (method.up(w=trained_to), None))
    left = method.end(task, None, method.down(w=sent), None)[0].w
    if math.isfinite(entry):
        torch.testing.assert_close(left.norm(), torch.tensor(2.0))
    else:
        assert not left.isfinite().all()


@pytest.mark.parametrize("name", ["mocha", "apple", "fedfomo", "separate", "dfedavg"])
def test_clipping_refuses_methods_that_do_not_exchange_one_model(name: str) -> None:
    method = make(name, {"clip_update": {}})
    engine = Ground(method).engine()
    assert "clip" in (method.refusal(engine.roster, engine.model) or "")


@pytest.mark.parametrize("name", METHODS)
def test_fine_tuning_refuses_whatever_deploys_more_than_one_model_before_it_trains(name: str) -> None:
    ground = ground_of(make(name, {}))
    engine = ground.engine()
    everyone = Cohort.everyone(engine.roster, engine.model, 0)
    down = ground.method.send(ground.method.open(engine.roster, engine.model), everyone)
    deployed = engine.personal(everyone, down)
    single = isinstance(deployed, Predictor) and deployed.weights is None
    reason = make(name, {"finetune": {}}).refusal(engine.roster, engine.model)
    assert (reason is None) == single and ground.method.one_model == single, reason
    assert single or "more than one model" in str(reason)


def test_fine_tuning_that_was_not_refused_refuses_a_mixture_where_it_is_used() -> None:
    with pytest.raises(BadInput, match="more than one model"):
        models(make("fedem", {"finetune": {}}))


def test_a_wrapped_method_is_written_back_whole() -> None:
    table = {"mu": 0.5, "finetune": {"epochs": 2}, "clip_update": {"norm": 3.0}}
    assert written("mine", make("mine", table | {"method": "fedprox"})) == table | {"method": "fedprox"}


def test_gradients_longer_than_the_clip_are_scaled_back() -> None:
    oracle = Oracle(training=Training(rounds=1, local_epochs=1, batch_size=11, lr=1.0, clip_gradient=0.1))
    up = oracle.play(make("fedavg", {}), rounds=1).ups[0]
    for silo in range(3):
        x, y = oracle.data(silo)
        g = oracle.grad(oracle.start(), x, y)
        length = (g**2).sum() ** 0.5
        close(oracle.vector(up.w)[silo], oracle.start() - g * min(1, 0.1 / length))
        assert length > 0.1
    free = Oracle(training=replace(oracle.training, clip_gradient=100.0)).play(make("fedavg", {}), rounds=1).ups[0]
    assert not torch.allclose(free.w, up.w)
