"""Blind: the server mixes models that it cannot read, and the silos end with those of a plain run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.conformance import CHECKS, Ground, check_every_field_matters, rounds, small_linear, small_mlp
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import run_rounds
from coterie.errors import BadInput
from coterie.methods import METHODS, make, written
from coterie.methods.wrappers.blind import WEIGHTS, group_key
from coterie.secure.fixed import FixedPoint, combined

SUMS = (
    "fedavg", "fedprox", "fedavg-local", "fedavg-ft", "fedprox-ft", "fedper", "lg-fedavg", "fedrep", "fedbabu", "fedbn",
    "fedrod", "knn-per", "fedsa-lora", "ffa-lora", "apfl", "ditto", "mr-mtl", "fedala", "perfedavg", "pfedme", "fedem",
)  # fmt: skip
COMPARING = ("fedamp", "heurfedamp", "fedacs")


def end(method: Method) -> list[Tensor]:
    """What the silos would deploy after ten rounds in which replies get lost."""
    ground = Ground(method)
    ground = replace(ground, training=replace(ground.training, rounds=10, drop=0.3, local_epochs=1))
    engine = ground.engine()
    outcome = run_rounds(engine.method, engine, engine.roster, engine.model, engine.training)
    everyone = Cohort.everyone(engine.roster, engine.model, 9)
    return [*engine.personal(everyone, engine.method.send(outcome.server, everyone)).tensors().values()]


def apart(method: str, options: dict[str, Any]) -> float:
    """How far the silos' models of a blind run are from those of a plain one."""
    both = zip(end(make(method, options)), end(make(method, {**options, "blind": {}})), strict=True)
    return max(float((one.double() - other.double()).abs().max()) for one, other in both)


@pytest.mark.parametrize("name", SUMS)
def test_ten_rounds_with_lost_replies_end_as_in_the_clear(name: str) -> None:
    assert apart(name, {}) < 1e-5


@pytest.mark.parametrize("name", COMPARING)
def test_with_sketches_without_error_so_do_methods_that_compare(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches that are the models themselves have their inner products: what is left is fixed point."""
    monkeypatch.setattr(
        "coterie.methods.wrappers.blind.sketch", lambda key, rows, k: F.pad(rows.double(), (0, k - rows.shape[1]))
    )
    assert apart(name, {}) < 1e-5


@pytest.mark.parametrize("name", [n for n in METHODS.packaged if n not in (*SUMS, *COMPARING)])
def test_every_other_method_refuses_and_gives_the_reason(name: str) -> None:
    reasons = []
    for build in (small_mlp, small_linear):
        engine = Ground(make(name, {}), build).engine()
        reasons.append(make(name, {"blind": {}}).refusal(engine.roster, engine.model) or "")
    assert all(reasons) and any("blind: " in reason for reason in reasons)


@pytest.mark.parametrize(
    "options",
    [
        {"robust": {"rule": "median"}},
        {"robust": {"rule": "clipped"}},
        {"robust": {"rule": "krum", "rogue": 0, "keep": 1}},
        {"compress": {"bits": 8}},
    ],
)
def test_what_is_no_sum_inside_it_is_refused(options: dict[str, Any]) -> None:
    method = make("fedavg", {**options, "blind": {}})
    engine = Ground(method).engine()
    assert "blind: " in (method.refusal(engine.roster, engine.model) or "")


def test_a_warm_up_that_keeps_a_part_of_the_servers_model_is_found_by_the_trial() -> None:
    method = make("lg-fedavg", {"warm_rounds": 1, "blind": {}})
    engine = Ground(method).engine()
    assert "more with models than add them up" in (method.refusal(engine.roster, engine.model) or "")


@pytest.mark.parametrize("options", [{"personal": ["2"]}, {"clip_update": {"norm": 0.1}}, {"finetune": {"epochs": 1}}])
def test_what_silos_do_by_themselves_goes_with_it(options: dict[str, Any]) -> None:
    assert apart("fedavg", options) < 1e-5


@pytest.mark.parametrize("check", [c for c in CHECKS if c is not check_every_field_matters], ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", ["fedavg", "fedamp"])
def test_conformance(name: str, check: Callable[[Ground], None]) -> None:
    """But for fields that are perturbed: a masked sum that was changed does not open at all."""
    check(Ground(make(name, {"blind": {}})))


@pytest.mark.parametrize("name", COMPARING)
def test_attention_from_sketches_is_near_that_from_models(name: str) -> None:
    found = {}
    for label, options in {"plain": {}, "blind": {"blind": {"sketch": 4096}}}.items():
        ground = Ground(make(name, options))
        engine = ground.engine()
        server, _ = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 3)
        everyone = Cohort.everyone(engine.roster, engine.model, 3)
        found[label] = ground.method.trace(server, everyone, None)["collaboration"]
    assert (found["blind"] - found["plain"]).abs().max() < 0.05


def test_a_silo_that_never_replied_counts_with_the_start_that_all_know() -> None:
    """Its cloud model is a mixture over the others' masked models and its own start, in the clear."""
    plain, blind = (Ground(make("fedamp", options)) for options in ({}, {"blind": {"sketch": 4096}}))
    sent = []
    for ground in (plain, blind):
        engine = ground.engine()
        some = torch.tensor([0, 2])
        server, _ = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 2, some)
        everyone = Cohort.everyone(engine.roster, engine.model, 2)
        down = ground.method.send(server, everyone)
        down = down if ground is plain else ground.method.opened(engine.task(everyone.ids, 2), down)  # type: ignore[attr-defined]
        sent.append(down.u)
    assert (sent[0] - sent[1]).abs().max() < 0.02


def uploads(method: Method) -> tuple[np.ndarray, np.ndarray]:
    """What a recording server sees of the silos' models over rounds, and the models: each (uploads, d)."""
    ground = Ground(method)
    engine = ground.engine()
    server, seen, models = method.open(engine.roster, engine.model), [], []
    for round in range(4):
        cohort = Cohort.everyone(engine.roster, engine.model, round)
        up = engine.train(cohort, method.send(server, cohort)).up
        server = method.receive(server, cohort, up)
        seen.append(up.w.double().numpy())
        models.append(engine.private().w.numpy())
    return np.concatenate(seen), np.concatenate(models)


def correlation(seen: np.ndarray, models: np.ndarray) -> float:
    """Between what was seen and the models, in standard errors of chance."""
    a, b = ((x - x.mean()) / x.std() for x in (seen.ravel(), models.ravel()))
    return float(abs((a * b).mean()) * a.size**0.5)


def test_no_upload_correlates_with_its_model_and_a_planted_one_does() -> None:
    assert correlation(*uploads(make("fedavg-local", {}))) > 10
    seen, models = uploads(make("fedavg-local", {"blind": {}}))
    assert correlation(seen, models) < 3
    planted = seen.copy()
    planted[5] = models[5] * 2.0**62
    assert correlation(planted[5], models[5]) > 5


def trained(method: Method, task_changes: dict[str, Any] | None = None, scale: float = 1.0) -> Any:
    """One upload of one silo in the first round; its model multiplied with a number."""
    ground = Ground(method)
    engine = ground.engine()
    cohort = Cohort.everyone(engine.roster, engine.model, 0)
    down = method.send(method.open(engine.roster, engine.model), cohort).take(torch.tensor([0]))
    task = replace(engine.task(torch.tensor([0]), 0), **(task_changes or {}))
    state = task.run(method.step, method.begin(task, down, engine.private().take(torch.tensor([0]))), "train")
    state = state.replace(w=state.w * scale + 0.0)  # which makes no -0
    return method.end(task, state, down, engine.private().take(torch.tensor([0])))[0]


def test_a_mask_is_used_once() -> None:
    """The same upload again has the same bits; another one, even of the same round, has another mask."""
    method = make("fedavg", {"blind": {}})
    first, again, other = trained(method), trained(method), trained(method, scale=1 + 1e-6)
    assert torch.equal(first.w, again.w) and torch.equal(first.nonce, again.nonce)
    assert not torch.equal(first.nonce, other.nonce)
    difference = (first.w - other.w).double()
    assert difference.abs().median() > 2.0**55  # of one mask the difference would be that of the models


def test_a_silo_of_another_group_key_opens_nothing() -> None:
    method = make("fedavg", {"blind": {}})
    ground = Ground(method)
    engine = ground.engine()
    server, _ = rounds(ground, engine, method.open(engine.roster, engine.model), 0, 1)
    everyone = Cohort.everyone(engine.roster, engine.model, 1)
    down = method.send(server, everyone)
    task = engine.task(everyone.ids, 1)
    method.personal(task, down, engine.private())
    with pytest.raises(BadInput, match="group key"):
        method.personal(replace(task, group=b"another"), down, engine.private())


def test_masks_go_by_the_group_key_and_nonces_by_the_silos_secret() -> None:
    method = make("fedavg", {"blind": {}})
    plain, grouped = trained(method), trained(method, {"group": b"run"})
    assert not torch.equal(grouped.w, plain.w)
    assert not torch.equal(trained(method, {"group": b"run", "secret": "of the silo"}).nonce, grouped.nonce)
    engine = Ground(method).engine()
    assert group_key(engine.task(torch.tensor([0]), 0)) == group_key(engine.task(torch.tensor([1]), 5))


@pytest.mark.parametrize("scale", [1e9, float("nan")])
def test_of_a_model_out_of_range_nothing_leaves_and_the_upload_does_not_count(scale: float) -> None:
    method = make("fedavg", {"blind": {}})
    up = trained(method, scale=scale)
    assert up.out_of_range.isnan().all()
    opened = up.w - trained(method, scale=0.0).w  # the mask of zeros, by the same nonce
    assert not opened.any()


def test_the_servers_sum_is_what_it_claims_to_be_and_not_of_two_masks() -> None:
    """Fixed point by hand: Σ a_ij c_j of the cells that the server holds."""
    method = make("fedavg", {"blind": {}})
    ground = Ground(method)
    engine = ground.engine()
    server, _ = rounds(ground, engine, method.open(engine.roster, engine.model), 0, 2)
    down = method.send(server, Cohort.everyone(engine.roster, engine.model, 2))
    assert len(server.nonce) == len(engine.roster)  # the start has gone, and so have the uploads of round one
    assert torch.equal(down.w, combined(getattr(down, f"w{WEIGHTS}"), server.cipher))
    shares = engine.roster.sizes / engine.roster.sizes.sum()
    torch.testing.assert_close(getattr(down, f"w{WEIGHTS}") / 2.0**24, shares, atol=1e-7, rtol=0)


def test_noise_on_a_sketch_has_the_length_that_was_asked_for() -> None:
    plain, noisy = (trained(make("fedamp", {"blind": {"sketch": 1024, "noise": z}})).sketch for z in (0.0, 0.5))
    assert abs(float((plain - noisy).norm()) - 0.5) < 0.05


def test_starts_apart_have_no_sketches_to_begin_with() -> None:
    method = make("fedamp", {"common_init": False, "blind": {}})
    engine = Ground(method).engine()
    assert "common_init" in (method.refusal(engine.roster, engine.model) or "")


def test_it_is_written_back_and_its_limit_is_a_power_of_two() -> None:
    method = make("fedavg", {"blind": {"limit": 64}})
    assert make("fedavg", written("fedavg", method)) == method
    assert 2.0 ** -FixedPoint(64.0).bits < 2.0 ** -FixedPoint(1024.0).bits
    with pytest.raises(BadInput, match="power of two"):
        make("fedavg", {"blind": {"limit": 1000}})
