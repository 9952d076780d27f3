"""APPLE against the equations of its paper."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from conflict import two_groups
from method_cases import conform
from oracle import Oracle, Played, close
from torch import nn

from coterie.conformance import (
    Ground,
    check_every_field_matters,
    check_rows_do_not_matter,
    check_state_moves,
    rounds,
    small_silos,
)
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.methods import make
from coterie.methods.apple import APPLE, CoresDown, wishes

NAMES = ("north", "south", "east")


@conform(
    "apple",
    {"mu": 0.0, "dr_lr": 0.05},
    {"budget": 1, "mu": 0.5, "dr_lr": 0.02, "scheduler": "exp", "L": 4, "fidelity": "official"},
    {"budget": 1, "mu": 0.5, "dr_lr": 0.02, "first": "budget", "dr_momentum": 0.9},
)
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def train(oracle: Oracle, i: int, k: int, core: np.ndarray, held: dict[int, np.ndarray], p: np.ndarray, **o: float):
    """Lines 6-9 of Algorithm 1 for one silo in a round counted from 0; `held` are the others' models it knows.

    With a momentum β the step on p is torch.optim.SGD's: v ← β v + slope, p ← p − η_2 v, from v = 0 in every round.
    """
    x, y = oracle.data(i)
    velocity = np.zeros(3)
    p0 = oracle.sizes / oracle.sizes.sum()
    known = [j for j in range(3) if j == i or j in held]
    for b in oracle.batches(i, k, o.get("purpose", "train")):
        models = {j: core if j == i else held[j] for j in known}
        g = oracle.grad(sum(p[j] * models[j] for j in known), x[b], y[b])  # eq. 4
        new = p.copy()
        for j in known:
            velocity[j] = o.get("momentum", 0.0) * velocity[j] + models[j] @ g + o["pull"] * (p[j] - p0[j])  # eq. 7
            new[j] = p[j] - o["dr_lr"] * velocity[j]  # eq. 6
        core = core - oracle.training.lr * p[i] * g  # eq. 5
        p = new
    return core, p


def cloud(oracle: Oracle, played: Played, down: CoresDown) -> np.ndarray:
    """Every silo's mixture of the newest core models."""
    engine = played.engine
    return oracle.vector(engine.method.cloud(engine.task(torch.arange(3), 9), down, engine.private()).models)


def newest(oracle: Oracle, played: Played, after: int) -> np.ndarray:
    """Every silo's core model as the server has it."""
    server = played.servers[after]
    return oracle.vector(server.models[server.newest])


@pytest.mark.parametrize(
    ("options", "pulls"),
    [
        ({"mu": 0.0}, [0.0, 0.0, 0.0]),
        # λ(r) = (cos(πr/L) + 1)/2 for r = 1, 2, 3 and L = 4, then ε^{r/L} with L = 2, which is 0 after round 2
        ({"mu": 0.7, "L": 4}, [0.7 * (math.cos(math.pi * r / 4) + 1) / 2 for r in (1, 2, 3)]),
        ({"mu": 0.7, "L": 2, "scheduler": "exp"}, [0.7 * 1e-3**0.5, 0.7 * 1e-3, 0.0]),
    ],
    ids=["without-pull", "cos", "exp"],
)
def test_three_rounds_with_every_model(options: dict[str, object], pulls: list[float]) -> None:
    oracle, dr_lr = Oracle(), 0.05
    played = oracle.play(make("apple", options | {"dr_lr": dr_lr}), rounds=3)
    cores, p = np.stack([oracle.start()] * 3), np.tile(oracle.sizes / oracle.sizes.sum(), (3, 1))
    close(played.privates[0].p, p)
    for k in range(3):
        before = cores
        made = [
            train(oracle, i, k, cores[i], {j: cores[j] for j in range(3) if j != i}, p[i], dr_lr=dr_lr, pull=pulls[k])
            for i in range(3)
        ]
        cores, p = np.stack([c for c, _ in made]), np.stack([q for _, q in made])
        close(oracle.vector(played.ups[k].core), cores)
        close(oracle.vector(played.privates[k + 1].core), cores)
        close(played.privates[k + 1].p, p)
        close(newest(oracle, played, k + 1), cores)
    everyone = Cohort(torch.arange(3), 3, played.engine.roster, played.engine.model)
    down = make("apple", options).send(played.servers[-1], everyone)
    # Line 13 returns what line 7 computed last: with the others' core models as they were downloaded.
    as_trained = [p[i] @ np.where(np.arange(3)[:, None] == i, cores, before) for i in range(3)]
    close(oracle.vector(played.engine.personal(everyone, down).models), np.stack(as_trained))
    close(cloud(oracle, played, down), p @ cores)


def test_the_published_code_has_no_half_gives_p_momentum_and_starts_every_core_model_by_itself() -> None:
    oracle, mu, dr_lr = Oracle(), 0.7, 0.05
    played = oracle.play(APPLE(mu=mu, dr_lr=dr_lr, L=4, fidelity="official"), rounds=1)
    cores = np.stack([oracle.start(name) for name in NAMES])
    pull = 2 * mu * (math.cos(math.pi / 4) + 1) / 2
    for i in range(3):
        held = {j: cores[j] for j in range(3) if j != i}
        p0 = oracle.sizes / oracle.sizes.sum()
        core, p = train(oracle, i, 0, cores[i], held, p0, dr_lr=dr_lr, pull=pull, momentum=0.9)
        close(oracle.vector(played.ups[0].core)[i], core)
        close(played.privates[1].p[i], p)


@pytest.mark.parametrize("fidelity", ["paper", "official"])
def test_p_has_the_momentum_that_is_given(fidelity: str) -> None:
    oracle, dr_lr, momentum = Oracle(), 0.02, 0.5
    options = {"mu": 0.0, "dr_lr": dr_lr, "dr_momentum": momentum, "fidelity": fidelity}
    played = oracle.play(make("apple", options), rounds=2)
    cores = np.stack([oracle.start(*([] if fidelity == "paper" else [name])) for name in NAMES])
    p = np.tile(oracle.sizes / oracle.sizes.sum(), (3, 1))
    for k in range(2):
        held = [{j: cores[j] for j in range(3) if j != i} for i in range(3)]
        made = [
            train(oracle, i, k, cores[i], held[i], p[i], dr_lr=dr_lr, pull=0.0, momentum=momentum) for i in range(3)
        ]
        cores, p = np.stack([c for c, _ in made]), np.stack([q for _, q in made])
        close(played.privates[k + 1].p, p)


def test_all_first_core_models_are_handed_out_unless_the_budget_holds_from_the_first_round() -> None:
    oracle = Oracle()
    played = oracle.play(APPLE(mu=0.0, dr_lr=0.05, budget=1, fidelity="official", dr_momentum=0.0), rounds=2)
    cores, p0 = np.stack([oracle.start(name) for name in NAMES]), oracle.sizes / oracle.sizes.sum()
    for i in range(3):
        held = {j: cores[j] for j in range(3) if j != i}
        core, p = train(oracle, i, 0, cores[i], held, p0, dr_lr=0.05, pull=0.0)
        close(oracle.vector(played.ups[0].core)[i], core)
        close(played.privates[1].p[i], p)
    new = [played.downs[1].picks[i] >= 0 for i in range(3)]
    assert all(int(each.sum()) == 2 for each in new), "the others are used as last seen"
    later = played.downs[1].cores[played.downs[1].picks[0, [1, 2]]]
    fresh = [any(np.allclose(oracle.vector(c), up) for up in oracle.vector(played.ups[0].core)) for c in later]
    assert sorted(fresh) == [False, True], "one of them is new, which is the budget"


def test_a_missing_silos_last_core_model_stands_in() -> None:
    oracle, dr_lr = Oracle(), 0.05
    played = oracle.play(APPLE(mu=0.0, dr_lr=dr_lr), rounds=2, ids=[0, 2])
    cores, p = np.stack([oracle.start()] * 3), np.tile(oracle.sizes / oracle.sizes.sum(), (3, 1))
    for k in range(2):
        before = cores.copy()
        for i in (0, 2):
            held = {j: before[j] for j in range(3) if j != i}
            cores[i], p[i] = train(oracle, i, k, before[i], held, p[i], dr_lr=dr_lr, pull=0.0)
        close(newest(oracle, played, k + 1), cores)
        close(played.privates[k + 1].p, p)
    close(oracle.vector(played.privates[-1].deployed)[1], oracle.start())


def test_under_a_budget_models_are_used_as_last_seen_and_unseen_weights_stay() -> None:
    oracle, dr_lr, total = Oracle(), 0.05, 5
    method = APPLE(mu=0.3, L=100, dr_lr=dr_lr, budget=1, fidelity="official", first="budget", dr_momentum=0.0)
    played = oracle.play(method, rounds=total)
    cores = np.stack([oracle.start(name) for name in NAMES])
    p0 = oracle.sizes / oracle.sizes.sum()
    p = np.tile(p0, (3, 1))
    held: list[dict[int, np.ndarray]] = [{}, {}, {}]
    asked = played.servers[0].asked
    for k in range(total):
        for i in range(3):
            (j,) = asked[i].tolist()
            assert j != i
            if k < 2:
                assert j not in held[i], "a model that was never seen comes first"
            held[i][j] = cores[j]
            down = played.downs[k]
            for j in range(3):
                if j in held[i]:
                    close(oracle.vector(down.cores[down.picks[i, j]]), held[i][j])
                else:
                    assert down.picks[i, j] == -1
        pull = 2 * 0.3 * (math.cos(math.pi * (k + 1) / 100) + 1) / 2
        made = [train(oracle, i, k, cores[i], held[i], p[i], dr_lr=dr_lr, pull=pull) for i in range(3)]
        cores, p = np.stack([c for c, _ in made]), np.stack([q for _, q in made])
        if k == 0:
            for i in range(3):
                (never,) = {0, 1, 2} - {i} - set(held[i])
                assert p[i, never] == p0[never]
        close(oracle.vector(played.ups[k].core), cores)
        close(played.privates[k + 1].p, p)
        asked = played.ups[k].asked
    assert any(np.abs(held[i][j] - cores[j]).max() > 1e-3 for i in range(3) for j in held[i]), "nothing was stale"


def test_models_that_nobody_uses_any_more_are_dropped() -> None:
    ground = Ground(APPLE(budget=1))
    engine = ground.engine()
    server = ground.method.open(engine.roster, engine.model)
    for r in range(6):
        server, _ = rounds(ground, engine, server, r, r + 1)
        pointed = torch.cat([server.newest, server.seen[server.seen >= 0]]).unique()
        assert len(server.models) == len(pointed) <= 4 + 4 * 3
    whole = Ground(APPLE())
    engine = whole.engine()
    server, _ = rounds(whole, engine, whole.method.open(engine.roster, engine.model), 0, 3)
    assert len(server.models) == 4


def test_a_round_brings_a_silo_no_more_new_models_than_its_budget() -> None:
    ground = Ground(APPLE(budget=2, first="budget"), silos=small_silos(sizes=(6,) * 6))
    engine = ground.engine()
    server = ground.method.open(engine.roster, engine.model)
    had: list[list[torch.Tensor]] = [[] for _ in range(6)]
    for r in range(4):
        down = ground.method.send(server, Cohort(torch.arange(6), r, engine.roster, engine.model))
        for i in range(6):
            models = list(down.one(i).cores)
            new = [a for a in models if not any(torch.equal(a, b) for b in had[i])]
            assert len(new) <= 2
            had[i] = models
        server, _ = rounds(ground, engine, server, r, r + 1)
    assert all(len(models) == 5 for models in had)


def test_wishes_follow_eq_9_without_replacement() -> None:
    p = torch.tensor([0.3, -0.9, 0.1, 0.5], dtype=torch.float64)
    base, many = 6.0, 40_000
    chance = torch.from_numpy(generator(0, "wishes").gumbel(size=(many, 4)))
    place, never = torch.zeros(many, dtype=torch.int64), torch.zeros(many, 4, dtype=torch.bool)
    order = wishes(p.expand(many, -1), base, never, place, chance)
    assert (order[:, -1] == 0).all(), "a silo never downloads its own"
    share = base ** p.abs().numpy()
    for first in (1, 2, 3):
        for second in {1, 2, 3} - {first}:
            rest = sum(share[j] for j in (1, 2, 3) if j != first)
            expected = share[first] / share[1:].sum() * share[second] / rest
            found = float(((order[:, 0] == first) & (order[:, 1] == second)).double().mean())
            assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / many)


def test_wishes_take_what_was_never_seen_first_and_break_ties_at_random() -> None:
    many = 4000
    p = torch.tensor([0.1, 0.1, 9.0, 0.0, 5.0], dtype=torch.float64).expand(many, -1)
    never = torch.tensor([True, False, False, True, True]).expand(many, -1)  # of itself a silo sees nothing either
    chance = torch.from_numpy(generator(1, "wishes").gumbel(size=(many, 5)))
    order = wishes(p, 100.0, never, torch.zeros(many, dtype=torch.int64), chance)
    assert (order[:, :2].sort(1).values == torch.tensor([3, 4])).all()
    assert abs(float((order[:, 0] == 3).double().mean()) - 0.5) < 4 * 0.5 / math.sqrt(many), "p decides a tie"


def test_confidence_in_p_grows_with_the_rounds_as_eq_8_says() -> None:
    oracle, method = Oracle(), APPLE(budget=1)
    engine = oracle.engine(method)
    p = torch.tensor([[0.1, 2.0, -3.0], [1.0, 0.5, 2.5], [0.0, 1.5, 0.3]], dtype=torch.float64)
    picks = torch.tensor([[-1, 0, 0], [0, -1, 0], [0, 0, -1]])  # all seen
    for t in range(30):
        asked = method._wishes(engine.task(torch.arange(3), t), p, picks, engine.private())
        base = max(1.5, (t + 2) * 1 / 3)  # the round after the one counted t from 0 is r = t + 2
        for i, name in enumerate(NAMES):
            draws = dict(
                zip(("east", "north", "south"), generator(3, "apple wishes", t, name).gumbel(size=3), strict=True)
            )
            score = {j: abs(p[i, j].item()) * math.log(base) + draws[NAMES[j]] for j in range(3) if j != i}
            assert asked[i].tolist() == [max(score, key=score.__getitem__)]


def test_without_end_to_mu_p_stays_and_all_mixtures_of_the_newest_models_are_one() -> None:
    oracle = Oracle()
    p0 = oracle.sizes / oracle.sizes.sum()
    method = APPLE(mu=1e14, L=100, dr_momentum=0.9)
    played = oracle.play(method, rounds=2)
    close(played.privates[-1].p, np.tile(p0, (3, 1)))
    down = method.send(played.servers[-1], Cohort(torch.arange(3), 2, played.engine.roster, played.engine.model))
    close(cloud(oracle, played, down), np.tile(p0 @ newest(oracle, played, 2), (3, 1)))
    with pytest.raises(BadInput, match="mu: inf is out of range"):
        make("apple", {"mu": math.inf})


def test_the_pull_falls_from_one_to_nothing() -> None:
    cos, exp = APPLE(mu=2.0, L=10), APPLE(mu=2.0, L=10, scheduler="exp")
    assert cos.pull(4) == pytest.approx(1.0) and exp.pull(4) == pytest.approx(2 * 1e-3**0.5)
    for method in (cos, exp):
        shares = [method.pull(round) for round in range(12)]
        assert all(a > b for a, b in pairwise(shares[:10]))
        assert shares[10:] == [0.0, 0.0]


@pytest.mark.parametrize("budget", [None, 2])
def test_weights_are_larger_within_a_group_than_across(budget: int | None) -> None:
    method = APPLE(mu=0.0, dr_lr=0.02, budget=budget)
    training = Training(rounds=12, local_epochs=3, batch_size=20, lr=0.5)
    model = Model(lambda: nn.Linear(5, 3), 3, dtype=torch.float64)
    engine = Simulator(method, two_groups(), model, training, seed=0)
    outcome = run_rounds(method, engine, engine.roster, model, training)
    first, last = outcome.traces["collaboration"][0], outcome.traces["collaboration"][-1]
    close(first, np.full((6, 6), 1 / 6))
    for i in range(6):
        within = [last[i, j] for j in range(6) if j != i and j % 2 == i % 2]
        across = [last[i, j] for j in range(6) if j % 2 != i % 2]
        assert min(within) > max(across) + 0.05
    everyone = Cohort.everyone(engine.roster, engine.model, 2)
    assert method.trace(outcome.server, everyone, None) == {}, "a deployed server never sees p"


def test_a_newcomer_learns_a_p_over_the_stored_core_models() -> None:
    oracle, dr_lr = Oracle(), 0.05
    method = APPLE(mu=0.4, L=50, dr_lr=dr_lr)
    played = oracle.play(method, rounds=2)
    newcomer = Simulator(method, oracle.silos[:1], oracle.model, oracle.training, oracle.seed)
    down = newcomer.host(played.servers[-1], 2)
    cores, p0 = newest(oracle, played, 2), oracle.sizes / oracle.sizes.sum()
    p, (x, y) = p0.copy(), oracle.data(0)
    for b in oracle.batches(0, 2, "arrive"):
        g = oracle.grad(p @ cores, x[b], y[b])
        p = p - dr_lr * (cores @ g + 0.4 * (math.cos(math.pi * 3 / 50) + 1) / 2 * (p - p0))
    close(newcomer.private().p[0], np.append(p, 0.0))
    assert not newcomer.private().core.any()
    everyone = Cohort(torch.arange(1), 2, newcomer.roster, newcomer.model)
    close(oracle.vector(newcomer.personal(everyone, down).models[0]), p @ cores)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


def test_batch_statistics_are_a_silos_own() -> None:
    ground = Ground(APPLE(dr_lr=0.05), normalised, training=Training(rounds=3, local_epochs=2, batch_size=9, lr=0.1))
    for check in (check_rows_do_not_matter, check_every_field_matters, check_state_moves):
        check(ground)
    engine = ground.engine()
    server, _ = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 2)
    everyone = Cohort(torch.arange(4), 2, engine.roster, engine.model)
    personal = engine.personal(everyone, ground.method.send(server, everyone)).models
    trained, cores = engine.model.layout.trained, engine.private().core
    assert torch.equal(personal[:, trained:], cores[:, trained:])
    assert not torch.equal(cores[0, trained:], cores[1, trained:])
    newcomers = replace(ground, silos=small_silos(seed=3, sizes=(7, 12), prefix="newcomer")).engine()
    measures = newcomers.measure(
        Cohort.everyone(newcomers.roster, newcomers.model, 2), newcomers.host(server, 2), ("test",)
    )
    assert np.isfinite(measures.values["test", "loss"]).all()
    assert not newcomers.private().core[:, :trained].any()
