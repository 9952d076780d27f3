"""FedFomo against the equations of Zhang et al., ICLR 2021."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from conflict import two_groups
from method_cases import conform
from oracle import Oracle, close
from torch import nn

from coterie.conformance import Ground, small_silos
from coterie.data.silo import Part
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.methods.fedfomo import FedFomo


@conform("fedfomo", {"budget": 1, "epsilon": 0.6, "epsilon_decay": 0.1})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def moved(oracle: Oracle, i: int, before: np.ndarray, candidates: dict[int, np.ndarray], n: int = 3):
    """The weights (n,) of a silo on its candidates, and where they move it from θ_i^{l−1}."""
    x, y = oracle.data(i, "validation")
    loss = oracle.losses(before, x, y).mean()
    gains = np.zeros(n)
    for j, theta in candidates.items():
        apart = np.sqrt(np.sum((theta - before) ** 2))
        if apart > 0:
            gains[j] = max(0.0, (loss - oracle.losses(theta, x, y).mean()) / apart)
    weights = gains / gains.sum() if gains.sum() > 0 else gains
    return weights, before + sum(weights[j] * (theta - before) for j, theta in candidates.items())


@pytest.mark.parametrize("ids", [[0, 1, 2], [0, 2]], ids=["everyone", "one-never-replies"])
def test_three_rounds(ids: list[int]) -> None:
    oracle = Oracle()
    played = oracle.play(FedFomo(), rounds=3, ids=ids)
    models = np.stack([oracle.start()] * 3)
    before, affinity, last = models.copy(), np.zeros((3, 3)), np.zeros((3, 3))
    mixed = []
    for k in range(3):
        uploaded = models.copy()
        for i in ids:
            candidates = {j: uploaded[j] for j in ids if k > 0 or j == i}  # nobody has replied before the first round
            last[i], start = moved(oracle, i, before[i], candidates)
            affinity[i] += last[i]
            before[i], models[i] = start, oracle.descend(i, start, k)
            mixed.append((last[i] > 0).sum())
        down = played.downs[k]
        for row, i in enumerate(ids):
            handed = {j for j in range(3) if down.picks[row, j] >= 0}
            assert handed == ({j for j in ids if j != i} if k > 0 else set())
            for j in handed:
                close(oracle.vector(down.models[down.picks[row, j]]), uploaded[j])
        close(oracle.vector(played.ups[k].w), models[ids])
        close(played.ups[k].weights, last[ids])
        server, private = played.servers[k + 1], played.privates[k + 1]
        close(oracle.vector(server.models), models)
        close(server.affinity, affinity)
        close(
            FedFomo().trace(server, Cohort.everyone(played.engine.roster, played.engine.model, k), None)[
                "collaboration"
            ],
            last,
        )
        close(oracle.vector(private.before), before)
        close(oracle.vector(private.w), models)
    assert max(mixed) > 1, "no silo ever mixed two models: the test shows too little"


def test_a_silo_that_nothing_improves_keeps_the_model_its_training_started_from() -> None:
    oracle, method = Oracle(), FedFomo()
    engine = oracle.engine(method)
    x, y = oracle.data(0, "validation")
    best = oracle.start()
    for _ in range(400):
        best = best - 0.5 * oracle.grad(best, x, y)
    worse = torch.stack([oracle.row(-best), oracle.row(-3 * best), oracle.row(-2 * best)])
    private = engine.private().take(torch.tensor([0])).replace(before=oracle.row(best)[None], w=worse[:1])
    server = method.open(engine.roster, engine.model).replace(models=worse, heard=torch.ones(3, dtype=torch.bool))
    task = engine.task(torch.tensor([0]), 1)
    down = method.send(server, Cohort(torch.tensor([0]), 1, engine.roster, engine.model))
    state = method.begin(task, down, private)
    assert not state.weights.any()
    close(oracle.vector(state.w)[0], best)


def test_a_budget_hands_out_the_models_of_highest_affinity_that_exist() -> None:
    oracle, method = Oracle(), FedFomo(budget=1, epsilon=0.0)
    engine = oracle.engine(method)
    affinity = torch.tensor([[9.0, 1.0, 2.0], [5.0, 9.0, 4.0], [0.0, 0.3, 9.0]], dtype=torch.float64)
    server = method.open(engine.roster, engine.model).replace(affinity=affinity)
    everyone = Cohort(torch.arange(3), 4, engine.roster, engine.model)
    all_heard = method.send(server.replace(heard=torch.tensor([True, True, True])), everyone).picks
    assert all_heard.tolist() == [[-1, -1, 2], [0, -1, -1], [-1, 1, -1]]
    some_heard = method.send(server.replace(heard=torch.tensor([True, True, False])), everyone).picks
    assert some_heard.tolist() == [[-1, 1, -1], [0, -1, -1], [-1, 1, -1]]
    wide = method.send(server.replace(heard=torch.tensor([True, True, True])), everyone)
    assert len(wide.one(0).models) == 1, "a silo is sent no more than its budget"


def test_exploring_is_epsilon_of_the_choices_and_fades() -> None:
    many, affinity = 4000, np.array([0.0, 3.0, 1.0, 2.0])
    method = FedFomo(budget=1, epsilon=0.4, epsilon_decay=0.1)

    def best(round: int) -> float:
        draws = (generator(round, "explore", i) for i in range(many))
        return float(np.mean([method._greedy([1, 2, 3], affinity, draw, round) == [1] for draw in draws]))

    for round, epsilon in ((0, 0.4), (1, 0.3), (4, 0.0)):
        expected = 1 - epsilon + epsilon / 3
        assert abs(best(round) - expected) <= 4 * math.sqrt(expected * (1 - expected) / many)
    draw = generator(0, "all")
    assert sorted(FedFomo(budget=9, epsilon=0.5)._greedy([1, 2, 3], affinity, draw, 0)) == [1, 2, 3]
    ties = [FedFomo(budget=1, epsilon=0.0)._greedy([0, 1], np.zeros(2), generator(2, i), 0)[0] for i in range(200)]
    assert 50 < sum(ties) < 150, "equal affinities are told apart at random"


def test_without_validation_data_it_refuses() -> None:
    silos = small_silos()
    empty = Part(silos[1].validation.x[:0], silos[1].validation.y[:0])
    ground = Ground(FedFomo(), silos=[silos[0], replace(silos[1], validation=empty), *silos[2:]])
    engine = ground.engine()
    with pytest.raises(BadInput, match="'silo-1' has none"):
        run_rounds(ground.method, engine, engine.roster, engine.model, ground.training)
    newcomers = replace(ground, silos=[replace(silos[1], validation=empty)]).engine()
    with pytest.raises(BadInput, match="'silo-1' has none"):
        newcomers.host(ground.method.open(engine.roster, engine.model), 1)


def test_weights_are_larger_within_a_group_than_across() -> None:
    method, training = FedFomo(), Training(rounds=4, local_epochs=3, batch_size=20, lr=0.1)
    model = Model(lambda: nn.Linear(5, 3), 3, dtype=torch.float64)
    engine = Simulator(method, two_groups(), model, training, seed=0)
    outcome = run_rounds(method, engine, engine.roster, model, training)
    last = outcome.traces["collaboration"][-1]
    close(last.sum(1), np.ones(6))
    for i in range(6):
        within = sum(last[i, j] for j in range(6) if j % 2 == i % 2)
        assert within > 0.9
        assert any(last[i, j] > 0.05 for j in range(6) if j != i and j % 2 == i % 2), "it learns from nobody"


def test_a_newcomer_weighs_all_stored_models_and_trains_once() -> None:
    oracle, method = Oracle(), FedFomo(budget=1)
    played = oracle.play(method, rounds=2)
    newcomer = Simulator(method, oracle.silos[1:2], oracle.model, oracle.training, oracle.seed)
    newcomer.host(played.servers[-1], 2)
    stored = dict(enumerate(oracle.vector(played.servers[-1].models)))
    weights, start = moved(oracle, 1, oracle.start(), stored)
    assert (weights > 0.2).all()
    close(oracle.vector(newcomer.private().w)[0], oracle.descend(1, start, 2, purpose="arrive"))
