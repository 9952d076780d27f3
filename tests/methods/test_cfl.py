"""Clustered FL against Sattler et al., TNNLS 2020."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from conflict import CLASSES, FEATURES, two_groups
from method_cases import conform
from oracle import Oracle, close
from torch import nn

from coterie.conformance import Ground, rounds
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import Outcome, run_rounds, traces
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.store import SPLITS
from coterie.engine.training import Training
from coterie.methods.cfl import ClusteredFL, bipartition
from coterie.methods.fedavg import FedAvg

ALWAYS = {"norms": "absolute", "eps1": 1e9, "eps2": 0.0, "gamma": 0.0, "min_rounds": 0}


@conform("cfl", ALWAYS, {"eps1": 50.0, "eps2": 0.1, "gamma": 0.1, "linkage": "complete", "min_rounds": 1})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def test_the_options_of_the_conformance_cases_do_split() -> None:
    for method in (ClusteredFL(**ALWAYS), ClusteredFL(eps1=50, eps2=0.1, gamma=0.1, linkage="complete", min_rounds=1)):
        ground = Ground(method)
        engine = ground.engine()
        server, _ = rounds(ground, engine, method.open(engine.roster, engine.model), 0, 3)
        assert len(server.w) > 1


# The paper's equations.


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


def best_bipartition(alpha: np.ndarray) -> tuple[float, set[int]]:
    """Of all ways to cut the silos in two, the one whose largest similarity across is least."""
    everyone = set(range(len(alpha)))
    cuts = [set(c) for size in range(1, len(alpha) // 2 + 1) for c in combinations(everyone, size)]
    return min((max(alpha[i, j] for i in cut for j in everyone - cut), cut) for cut in cuts)


@pytest.mark.parametrize("seed", range(5))
def test_single_linkage_is_the_papers_bipartition(seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(7, 4))
    alpha = np.array([[cosine(a, b) for b in x] for a in x])
    side = bipartition(alpha, "single")
    least, _ = best_bipartition(alpha)
    assert alpha[side][:, ~side].max() == least
    assert side.sum() <= 3


def updates(oracle: Oracle, w: np.ndarray, round: int, ids: list[int]) -> np.ndarray:
    """Δw_i of some silos, each from its own row of w."""
    return np.stack([oracle.descend(i, w[i], round) - w[i] for i in ids])


def test_two_rounds_with_a_split_in_the_first() -> None:
    oracle = Oracle()
    played = oracle.play(ClusteredFL(**ALWAYS, linkage="single"), rounds=2)
    start, n = oracle.start(), oracle.sizes
    delta = updates(oracle, np.stack([start] * 3), 0, [0, 1, 2])
    close(oracle.vector(played.ups[0].delta), delta)
    alpha = np.array([[cosine(a, b) for b in delta] for a in delta])
    _, alone = best_bipartition(alpha)  # of three silos one leaves
    (odd,) = alone
    pair = [i for i in range(3) if i != odd]
    stay = n[pair] @ delta[pair] / n[pair].sum()
    models = np.stack([start + stay, start + delta[odd]])
    server = played.servers[1]
    assert server.cluster.tolist() == [int(i == odd) for i in range(3)]
    close(oracle.vector(server.w), models)
    close(server.peak, [np.linalg.norm(stay), np.linalg.norm(delta[odd])])
    close(oracle.vector(server.update), delta)
    close(server.longest, max(np.linalg.norm(each) for each in delta))
    close(oracle.vector(server.root), start)
    # In the second round each trains its own cluster's model; the pair splits too, and one of it leaves for a third.
    sent = models[server.cluster.numpy()]
    close(oracle.vector(played.downs[1].w), sent)
    delta = updates(oracle, sent, 1, [0, 1, 2])
    close(oracle.vector(played.ups[1].delta), delta)
    first, second = pair if ["north", "south", "east"][pair[0]] < ["north", "south", "east"][pair[1]] else pair[::-1]
    server = played.servers[2]
    assert server.cluster[[first, odd, second]].tolist() == [0, 1, 2]  # of two equal sides the first name stays
    close(oracle.vector(server.w), np.stack([sent[i] + delta[i] for i in (first, odd, second)]))
    close(oracle.vector(server.root), start)


def test_a_split_needs_a_short_mean_and_a_long_update_in_true_norms() -> None:
    oracle = Oracle()
    delta = updates(oracle, np.stack([oracle.start()] * 3), 0, [0, 1, 2])
    mean = float(np.linalg.norm(oracle.sizes @ delta / oracle.sizes.sum()))
    longest = max(float(np.linalg.norm(each)) for each in delta)

    def splits(eps1: float, eps2: float, **options: Any) -> bool:
        method = ClusteredFL(**(ALWAYS | {"eps1": eps1, "eps2": eps2} | options))
        return len(oracle.play(method, rounds=1).servers[1].w) == 2

    assert splits(mean * 1.0001, longest * 0.9999)
    assert not splits(mean * 0.9999, longest * 0.9999)
    assert not splits(mean * 1.0001, longest * 1.0001)
    # A first round is its own measure: the mean is 1 of the longest mean, the longest update 1 of the longest so far.
    assert splits(1.0001, 0.9999, norms="relative")
    assert not splits(0.9999, 0.9999, norms="relative")
    assert not splits(1.0001, 1.0001, norms="relative")


def test_relative_norms_are_shares_of_the_longest_so_far() -> None:
    method = ClusteredFL(eps1=0.5, eps2=0.8)

    def apart(mean: float, most: float, peak: float, longest: float) -> bool:
        return method.apart(*(torch.tensor(v, dtype=torch.float64) for v in (mean, most, peak, longest)))

    assert apart(4.9, 8.1, peak=10, longest=10)
    assert not apart(5.1, 8.1, peak=10, longest=10)
    assert not apart(4.9, 7.9, peak=10, longest=10)
    # Silos that cancel out from the start: a mean update below 0.5 × 0.2 of the longest is none.
    assert apart(0.99, 10, peak=0.99, longest=10)
    assert not apart(1.01, 10, peak=1.01, longest=10)


def test_a_split_needs_the_bound_on_gamma_and_its_rounds() -> None:
    oracle = Oracle()
    delta = updates(oracle, np.stack([oracle.start()] * 3), 0, [0, 1, 2])
    alpha = np.array([[cosine(a, b) for b in delta] for a in delta])
    bound = float(np.sqrt((1 - best_bipartition(alpha)[0]) / 2))

    def splits(**options: Any) -> bool:
        return len(oracle.play(ClusteredFL(**(ALWAYS | options)), rounds=1).servers[1].w) == 2

    assert splits(gamma=bound - 1e-6)
    assert not splits(gamma=bound + 1e-6)
    assert not splits(min_rounds=1)


def test_a_side_that_is_too_small_does_not_leave() -> None:
    updates = torch.tensor([[1.0, 0.1], [1.0, 0.0], [-1.0, 0.0], [1.0, -0.1]])
    replied = torch.ones(4, dtype=torch.bool)
    leaves = ClusteredFL(gamma=0.5).leaving(updates, replied)
    assert leaves is not None and leaves.tolist() == [False, False, True, False]
    assert ClusteredFL(gamma=0.5, min_size=2).leaving(updates, replied) is None
    replied[0] = False  # three who reply cannot be two and two
    assert ClusteredFL(gamma=0.5, min_size=2).leaving(updates, replied) is None


def test_a_silo_that_did_not_move_leaves_with_its_side() -> None:
    updates = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 0.0]])  # the last is like nobody, not even itself
    leaves = ClusteredFL(gamma=0.5).leaving(updates, torch.ones(3, dtype=torch.bool))
    assert leaves is not None and leaves.tolist() == [False, False, True]


# Who is absent.


def play(oracle: Oracle, method: ClusteredFL, cohorts: list[list[int]]) -> list[Any]:
    """The server after each round of its own cohort, the start first."""
    engine = oracle.engine(method)
    servers = [method.open(engine.roster, engine.model)]
    for r, ids in enumerate(cohorts):
        cohort = Cohort(torch.tensor(ids), r, engine.roster, engine.model)
        up = engine.train(cohort, method.send(servers[-1], cohort)).up
        servers.append(method.receive(servers[-1], cohort, up))
    return servers


def test_an_absent_silo_goes_where_its_last_update_points() -> None:
    oracle = Oracle()
    method = ClusteredFL(**(ALWAYS | {"min_rounds": 1}))
    before, middle, after = play(oracle, method, [[0, 1, 2], [0, 2]])
    last = oracle.vector(middle.update)[1]
    here = updates(oracle, oracle.vector(middle.w)[[0, 0, 0]], 1, [0, 2])
    nearer = 0 if cosine(last, here[0]) > cosine(last, here[1]) else 2
    assert after.cluster[0] != after.cluster[2]
    assert after.cluster[1] == after.cluster[nearer]
    close(oracle.vector(after.update)[1], last)
    model = oracle.vector(middle.w)[0]  # each side moves by its replier alone
    close(oracle.vector(after.w)[after.cluster[[0, 2]]], model + here)
    close(oracle.vector(after.root), model)  # where the federation first split
    assert not before.heard.any() and middle.heard.all()


def test_a_silo_first_heard_after_a_split_is_placed_by_its_update_of_the_root() -> None:
    oracle = Oracle()
    _, split, placed, after = play(oracle, ClusteredFL(**ALWAYS), [[0, 2], [1], [1]])
    assert split.cluster.tolist() == [1, 0, 0]  # two equal sides: "east" stays, before "north"; the unheard with it
    assert split.heard.tolist() == [True, False, True]
    start = np.stack([oracle.start()] * 3)
    delta = updates(oracle, start, 1, [1])[0]
    close(oracle.vector(placed.update)[1], delta)  # it was sent the model that split
    side = int(np.argmax([cosine(delta, w - start[0]) for w in oracle.vector(split.w)]))
    assert placed.cluster.tolist() == [1, side, 0]
    close(placed.w, split.w)  # which its update is not one of
    assert placed.heard.all()
    sent = oracle.vector(placed.w)[placed.cluster]
    moved = oracle.vector(placed.w).copy()
    moved[side] += updates(oracle, sent, 2, [1])[0]
    close(oracle.vector(after.w), moved)


# Limits.


@pytest.mark.parametrize("ids", [None, [0, 2]])
def test_unsplit_it_is_fedavg(ids: list[int] | None) -> None:
    oracle = Oracle()
    ours = oracle.play(ClusteredFL(min_rounds=100), rounds=3, ids=ids).servers
    theirs = oracle.play(FedAvg(), rounds=3, ids=ids).servers
    for mine, other in zip(ours, theirs, strict=True):
        close(mine.w[0], other.w)
        assert len(mine.w) == 1
    moved = [np.linalg.norm(oracle.vector(after.w - before.w)) for before, after in pairwise(theirs)]
    close(ours[-1].peak, [max(moved)])
    assert max(moved) > moved[-1]


# What people want of it: two groups that contradict each other.

TRAINING = Training(rounds=25, local_epochs=2, batch_size=10, lr=0.3)


def run(method: Method, turn: bool = True) -> Outcome:
    silos = two_groups(8)
    if not turn:  # the same silos, agreeing
        silos = [
            replace(s, **{p: replace(getattr(s, p), y=(getattr(s, p).y - i % 2) % CLASSES) for p in SPLITS})
            for i, s in enumerate(silos)
        ]
    model = Model(lambda: nn.Linear(FEATURES, CLASSES), CLASSES)
    engine = Simulator(method, silos, model, TRAINING, seed=0)
    return run_rounds(method, engine, engine.roster, model, TRAINING)


def accuracy(outcome: Outcome) -> float:
    last = outcome.results[-1]
    return float(last[(last["split"] == "test") & (last["measure"] == "accuracy")]["value"].mean())


def test_two_groups_with_conflicting_labels_split_exactly_along_them() -> None:
    outcome = run(ClusteredFL())
    kept = traces(outcome)
    assert (kept["cluster"][: ClusteredFL().min_rounds] == 0).all()
    assert kept["cluster"][-1].tolist() == [0, 1] * 4  # even and odd places, and no further split
    together = np.equal.outer(np.arange(8) % 2, np.arange(8) % 2)
    assert np.array_equal(kept["collaboration"][0], np.full((8, 8), 1 / 8))
    assert np.array_equal(kept["collaboration"][-1], together / 4)
    assert accuracy(outcome) > 0.9 > 0.6 > accuracy(run(FedAvg()))


def test_they_split_the_same_way_when_replies_are_lost() -> None:
    method = ClusteredFL()
    training = replace(TRAINING, drop=0.3, rounds=30)
    model = Model(lambda: nn.Linear(FEATURES, CLASSES), CLASSES)
    engine = Simulator(method, two_groups(8), model, training, seed=0)
    outcome = run_rounds(method, engine, engine.roster, model, training)
    side = traces(outcome)["cluster"][-1]
    assert sorted(side.tolist()) == [0] * 4 + [1] * 4
    assert len(set(side[::2])) == len(set(side[1::2])) == 1


def test_silos_first_heard_after_the_split_find_their_group() -> None:
    method = ClusteredFL()
    model = Model(lambda: nn.Linear(FEATURES, CLASSES), CLASSES)
    engine = Simulator(method, two_groups(8), model, TRAINING, seed=0)
    server = method.open(engine.roster, model)
    for r in range(16):
        cohort = Cohort(torch.arange(6 if r < 15 else 8), r, engine.roster, engine.model)
        server = method.receive(server, cohort, engine.train(cohort, method.send(server, cohort)).up)
        assert r < 14 or len(server.w) == 2
    assert server.cluster.tolist() == [0, 1] * 4


def test_silos_that_agree_do_not_split() -> None:
    assert (traces(run(ClusteredFL(), turn=False))["cluster"][-1] == 0).all()


def test_newcomers_get_the_cluster_of_their_group() -> None:
    method = ClusteredFL()
    server = run(method).server
    newcomers = [replace(s, name=f"newcomer-{s.name}") for s in two_groups(12)[8:]]
    model = Model(lambda: nn.Linear(FEATURES, CLASSES), CLASSES)
    engine = Simulator(method, newcomers, model, TRAINING, seed=0)
    down = engine.host(server, 25)
    assert torch.equal(down.w, server.w[torch.tensor([0, 1, 0, 1])])


def test_batch_norms_statistics_are_averaged_but_decide_nothing() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    ground = Ground(ClusteredFL(**ALWAYS), build, training=Training(rounds=2, local_epochs=1, batch_size=9, lr=0.1))
    engine = ground.engine()
    server = ground.method.open(engine.roster, engine.model)
    cohort = Cohort(torch.arange(4), 0, engine.roster, engine.model)
    up = engine.train(cohort, ground.method.send(server, cohort)).up
    trained = engine.model.layout.trained
    noise = torch.cat([torch.zeros(4, trained), 100 * torch.randn(4, 32 * 3)], 1)[:, : up.delta.shape[1]].double()
    plain, noisy = (ground.method.receive(server, cohort, up.replace(delta=up.delta + n)) for n in (0 * noise, noise))
    assert torch.equal(plain.cluster, noisy.cluster)
    close(plain.longest, noisy.longest)
    close(plain.peak, noisy.peak)
    assert not torch.allclose(plain.w[:, trained:], noisy.w[:, trained:])
