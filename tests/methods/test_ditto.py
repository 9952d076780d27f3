"""Ditto against Algorithm 1 of Li et al., ICML 2021."""

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
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.separate import Separate


@conform("ditto", {"lam": 0.2, "personal_epochs": 3})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


@pytest.mark.parametrize("cohort", [[0, 1, 2], [0, 2]], ids=["all", "two of three"])
@pytest.mark.parametrize(("own", "epochs"), [("shared", 2), (2, 2), (3, 3)])
def test_two_rounds(cohort: list[int], own: int | str, epochs: int) -> None:
    oracle, lam = Oracle(), 0.4
    played = oracle.play(Ditto(lam=lam, personal_epochs=own), rounds=2, ids=cohort)
    w, v = oracle.start(), np.stack([oracle.start()] * 3)
    for r in range(2):
        local = {}
        for i in cohort:
            v[i] = oracle.descend(i, v[i], r, lam, w, epochs=epochs)
            local[i] = oracle.descend(i, w, r)
        close(oracle.vector(played.ups[r].w), [local[i] for i in cohort])
        w = sum(oracle.sizes[i] * local[i] for i in cohort) / oracle.sizes[cohort].sum()
        close(oracle.vector(played.servers[r + 1].w), w)
        close(oracle.vector(played.privates[r + 1].v), v)


def test_only_the_copy_of_the_global_model_leaves() -> None:
    up = Oracle().play(Ditto(), rounds=1).ups[0]
    assert list(up.tensors()) == ["w"]


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}, {"optimizer": "adam"}], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("own", ["shared", 2])
def test_without_a_pull_it_is_separate_beside_fedavg(own: int | str, training: dict[str, object]) -> None:
    oracle = Oracle(training=Training(rounds=4, local_epochs=2, batch_size=4, lr=0.1, **training))
    ditto = oracle.play(Ditto(lam=0.0, personal_epochs=own), rounds=3)
    close(ditto.privates[-1].v, oracle.play(Separate(), rounds=3).privates[-1].w)
    close(ditto.servers[-1].w, oracle.play(FedAvg(), rounds=3).servers[-1].w)


def test_a_silo_deploys_its_own_model() -> None:
    played = Oracle().play(Ditto(), rounds=1)
    task = played.engine.task(torch.arange(3), 0)
    close(Ditto().personal(task, played.downs[0], played.privates[-1]).models, played.privates[-1].v)


def test_a_newcomer_trains_from_the_global_model_and_is_pulled_towards_it() -> None:
    oracle = Oracle()
    method = Ditto(lam=0.4)
    played = oracle.play(method, rounds=1)
    w = oracle.vector(played.servers[-1].w)
    played.engine.host(played.servers[-1], 1)
    for i in range(3):
        v = oracle.descend(i, w, 1, 0.4, w, purpose="arrive")
        close(oracle.vector(played.engine.private().v)[i], v)


def test_batch_norm() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    training = Training(rounds=3, local_epochs=1, batch_size=8, lr=0.1)
    check_rows_do_not_matter(Ground(Ditto(), normed, training=training))
