"""MR-MTL against the objective and the algorithm of Liu et al., NeurIPS 2022."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import Oracle, close
from torch import nn

from coterie.conformance import Ground, check_rows_do_not_matter
from coterie.engine.method import Method
from coterie.engine.training import Training
from coterie.methods.fedavg import FedAvg
from coterie.methods.mr_mtl import MRMTL
from coterie.methods.separate import Separate


@conform("mr-mtl", {"lam": 2.0})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


@pytest.mark.parametrize("cohorts", [[[0, 1, 2]] * 3, [[0, 2], [1], [0, 1, 2]]], ids=["all", "some"])
def test_three_rounds(cohorts: list[list[int]]) -> None:
    """w_i ← argmin F_i(w) + λ/2 ‖w − w̄‖², from the silo's own last model; w̄ ← the mean of those who replied."""
    oracle, lam = Oracle(), 0.7
    played = oracle.play(MRMTL(lam=lam), rounds=3, ids=cohorts)
    mean, w = oracle.start(), np.stack([oracle.start()] * 3)
    for r, cohort in enumerate(cohorts):
        close(oracle.vector(played.downs[r].w), mean)
        for i in cohort:
            w[i] = oracle.descend(i, w[i], r, lam, mean)
        close(oracle.vector(played.ups[r].w), w[cohort])
        mean = sum(oracle.sizes[i] * w[i] for i in cohort) / oracle.sizes[cohort].sum()
        close(oracle.vector(played.servers[r + 1].w), mean)
        close(oracle.vector(played.privates[r + 1].w), w)
    close(oracle.vector(played.deployed()), w)


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}, {"optimizer": "adam"}], ids=["sgd", "momentum", "adam"])
def test_without_a_pull_it_is_separate(training: dict[str, object]) -> None:
    oracle = Oracle(training=Training(rounds=4, local_epochs=2, batch_size=4, lr=0.1, **training))
    alone = oracle.play(Separate(), rounds=3).privates[-1].w
    close(oracle.play(MRMTL(lam=0.0), rounds=3).privates[-1].w, alone)


def test_with_an_endless_pull_it_is_fedavg_at_a_smaller_rate() -> None:
    """A proximal step of strength λ is one of the rate η / (1 + ηλ) around w̄, where all models end."""
    lam, lr = 1e4, 0.1
    once = Training(rounds=20, local_epochs=1, batch_size=16, lr=lr)
    pulled = Oracle(training=once)
    plain = Oracle(training=Training(rounds=20, local_epochs=1, batch_size=16, lr=lr / (1 + lr * lam)))
    ours = pulled.play(MRMTL(lam=lam), rounds=20)
    went = pulled.vector(ours.servers[-1].w) - pulled.start()
    theirs = plain.vector(plain.play(FedAvg(), rounds=20).servers[-1].w) - plain.start()
    np.testing.assert_allclose(went, theirs, rtol=0, atol=2e-3 * np.abs(theirs).max())
    apart = pulled.vector(ours.privates[-1].w) - pulled.vector(ours.servers[-1].w)
    assert np.linalg.norm(apart, axis=1).max() < 0.2 * np.linalg.norm(went)


def test_a_silo_deploys_its_own_model_and_the_mean_is_the_clouds() -> None:
    played = Oracle().play(MRMTL(), rounds=1)
    task, private = played.engine.task(torch.arange(3), 0), played.privates[-1]
    close(MRMTL().personal(task, played.downs[0], private).models, private.w)
    close(MRMTL().cloud(task, played.downs[0], private).models, played.downs[0].w.expand(3, -1))


def test_a_newcomer_trains_from_the_mean_and_is_pulled_towards_it() -> None:
    oracle, lam = Oracle(), 0.4
    played = oracle.play(MRMTL(lam=lam), rounds=2)
    mean = oracle.vector(played.servers[-1].w)
    played.engine.host(played.servers[-1], 2)
    for i in range(3):
        close(oracle.vector(played.engine.private().w)[i], oracle.descend(i, mean, 2, lam, mean, purpose="arrive"))


def test_batch_norm() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    training = Training(rounds=3, local_epochs=1, batch_size=8, lr=0.1)
    check_rows_do_not_matter(Ground(MRMTL(), normed, training=training))
