"""IFCA against Algorithm 1 (model averaging) of Ghosh et al., NeurIPS 2020."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from conflict import two_groups
from method_cases import conform
from oracle import Oracle, close
from torch import nn

from coterie.conformance import Ground, check_rows_do_not_matter
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.methods import make
from coterie.methods.fedavg import FedAvg
from coterie.methods.ifca import IFCA


@conform("ifca", {"clusters": 3}, {"clusters": 2, "restarts": 2})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def starts(oracle: Oracle, restarts: int, clusters: int) -> np.ndarray:
    """Random models (restarts, clusters, 15); the very first is the one of all methods."""
    keys = [("cluster", r, j) if r or j else () for r in range(restarts) for j in range(clusters)]
    return np.stack([oracle.start(*key) for key in keys]).reshape(restarts, clusters, -1)


def nearest(oracle: Oracle, silo: int, models: np.ndarray) -> tuple[int, float]:
    """The model of least mean loss on all of a silo's training data, and that loss."""
    losses = [oracle.losses(w, *oracle.data(silo)).mean() for w in models]
    return int(np.argmin(losses)), float(min(losses))


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("cohorts", [[[0, 1, 2]] * 4, [[0, 2], [1], [0, 1], [0, 1, 2]]], ids=["all", "some"])
def test_four_rounds(cohorts: list[list[int]], restarts: int) -> None:
    oracle, clusters = Oracle(), 2
    played = oracle.play(IFCA(clusters=clusters, restarts=restarts), rounds=4, ids=cohorts)
    models, chosen = starts(oracle, restarts, clusters), set()
    for t, cohort in enumerate(cohorts):
        close(oracle.vector(played.downs[t].w), models)
        picks, losses, trained = (
            np.zeros((3, restarts), dtype=int),
            np.zeros((3, restarts)),
            np.zeros((3, restarts, models.shape[-1])),
        )
        for i in cohort:
            for r in range(restarts):
                picks[i, r], losses[i, r] = nearest(oracle, i, models[r])  # argmin_j F_i(θ_j)
                trained[i, r] = oracle.descend(i, models[r, picks[i, r]], t)
                chosen.add(picks[i, r])
        close(oracle.vector(played.ups[t].w), trained[cohort])
        close(played.ups[t].cluster, picks[cohort])
        models = models.copy()
        for r in range(restarts):
            for j in range(clusters):
                mine = [i for i in cohort if picks[i, r] == j]
                if mine:  # Σ_i s_ij θ_i / Σ_i s_ij, by samples; where nobody chose it, a model stays
                    models[r, j] = sum(oracle.sizes[i] * trained[i, r] for i in mine) / oracle.sizes[mine].sum()
        total = sum(oracle.sizes[i] * losses[i] for i in cohort)
        if restarts > 1:
            close(played.ups[t].loss, losses[cohort])
            models = models[np.argsort(total, kind="stable")]  # the restart of least loss comes first
        close(oracle.vector(played.servers[t + 1].w), models)
    assert len(chosen) > 1, "every silo chose the same model: the test shows too little"
    deployed = oracle.vector(played.deployed())
    for i in range(3):
        close(deployed[i], models[0, nearest(oracle, i, models[0])[0]])


@pytest.mark.parametrize("training", [{}, {"optimizer": "adam"}], ids=["sgd", "adam"])
def test_one_cluster_is_fedavg(training: dict[str, object]) -> None:
    oracle = Oracle(training=Training(rounds=4, local_epochs=2, batch_size=4, lr=0.1, **training))
    one, plain = (oracle.play(method, rounds=3) for method in (IFCA(clusters=1), FedAvg()))
    close(one.servers[-1].w[0, 0], plain.servers[-1].w)
    close(one.deployed(), plain.deployed())


def test_starts_are_distinct_and_go_by_the_seed() -> None:
    oracle, method = Oracle(), IFCA(clusters=3, restarts=2)
    engine = oracle.engine(method)
    w = method.open(engine.roster, engine.model).w
    close(oracle.vector(w), starts(oracle, 2, 3))
    assert len(torch.unique(w.reshape(6, -1), dim=0)) == 6


def test_no_loss_leaves_where_there_is_nothing_to_choose() -> None:
    assert set(Oracle().play(IFCA(), rounds=1).ups[0].tensors()) == {"w", "cluster"}


def two_groups_run(restarts: int, seed: int) -> tuple[np.ndarray, float]:
    """The clusters that six silos of two groups end in, and their accuracy."""
    training = Training(rounds=12, local_epochs=2, batch_size=20, lr=0.2, measure_every=12)
    method, model = IFCA(clusters=2, restarts=restarts), Model(lambda: nn.Linear(5, 3), 3, dtype=torch.float64)
    engine = Simulator(method, two_groups(), model, training, seed=seed)
    outcome = run_rounds(method, engine, engine.roster, model, training)
    table = outcome.results[-1]
    picked = (table["split"] == "test") & (table["measure"] == "accuracy")
    return outcome.traces["cluster"][-1], float(table[picked]["value"].mean())


def test_silos_of_a_group_end_in_one_cluster() -> None:
    cluster, accuracy = two_groups_run(restarts=1, seed=0)
    assert len(set(cluster[::2])) == len(set(cluster[1::2])) == 1 and cluster[0] != cluster[1]
    assert accuracy > 0.8


def test_from_a_bad_start_all_choose_one_model_and_restarts_help() -> None:
    once, poor = two_groups_run(restarts=1, seed=7)
    again, good = two_groups_run(restarts=4, seed=7)
    assert len(set(once)) == 1 and poor < 0.6
    assert len(set(again[::2])) == len(set(again[1::2])) == 1 and again[0] != again[1] and good > 0.8


def test_the_report_shows_who_is_with_whom_and_who_was_never_heard() -> None:
    oracle, method = Oracle(), IFCA(clusters=2)
    played = oracle.play(method, rounds=2, ids=[0, 2])
    everyone = Cohort.everyone(played.engine.roster, played.engine.model, 1)
    trace = method.trace(played.servers[-1], everyone, None)
    assert trace["cluster"][1] == -1 and (trace["cluster"][[0, 2]] >= 0).all()
    close(trace["collaboration"].sum(1), np.ones(3))
    close(trace["collaboration"][1], [0, 1, 0])


def test_whole_numbers_of_any_width_may_arrive() -> None:
    oracle, method = Oracle(), IFCA()
    played = oracle.play(method, rounds=1)
    cohort = Cohort.everyone(played.engine.roster, played.engine.model, 0)
    narrow = played.ups[0].replace(cluster=played.ups[0].cluster.to(torch.int32))
    close(method.receive(played.servers[0], cohort, narrow).cluster, played.servers[1].cluster)


def test_a_newcomer_takes_the_model_of_least_loss_and_sends_nothing() -> None:
    oracle, method = Oracle(), IFCA(clusters=3)
    played = oracle.play(method, rounds=3)
    newcomers = Simulator(method, oracle.silos, oracle.model, oracle.training, oracle.seed)
    down = newcomers.host(played.servers[-1], 3)
    models = oracle.vector(played.servers[-1].w)[0]
    found = oracle.vector(newcomers.personal(Cohort.everyone(newcomers.roster, newcomers.model, 3), down).models)
    for i in range(3):
        close(found[i], models[nearest(oracle, i, models)[0]])


@pytest.mark.parametrize("wrapper", ["privacy", "clip_update", "compress", "robust"])
def test_wrappers_of_one_exchanged_model_refuse(wrapper: str) -> None:
    method = make("ifca", {wrapper: {"bits": 8} if wrapper == "compress" else {}})
    engine = Ground(method).engine()
    with pytest.raises(BadInput, match=wrapper):
        run_rounds(method, engine, engine.roster, engine.model, Training(rounds=1))


def test_fine_tuning_fits() -> None:
    oracle = Oracle()
    plain, tuned = (oracle.play(make("ifca", t), rounds=1) for t in ({}, {"finetune": {"epochs": 1}}))
    before, after = (oracle.vector(p.deployed()) for p in (plain, tuned))
    for i in range(3):
        close(after[i], oracle.descend(i, before[i], 0, purpose="finetune", epochs=1))


def test_batch_norm() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    training = Training(rounds=3, local_epochs=1, batch_size=8, lr=0.1)
    check_rows_do_not_matter(replace(Ground(IFCA(), normed), training=training))
