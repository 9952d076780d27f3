"""LG-FedAvg: heads are averaged, bodies stay; before that, where asked for, rounds of FedAvg."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import Oracle, close
from two_layers import COHORTS, TwoLayers

from coterie.conformance import Ground, ground_of
from coterie.engine.method import Method
from coterie.methods import make
from coterie.methods.fedavg_local import FedAvgLocal
from coterie.methods.lg_fedavg import LGFedAvg


@conform("lg-fedavg", {"warm_rounds": 1}, {"warm_rounds": 1, "clip_update": {"norm": 0.1}})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(ground_of(method))


@pytest.mark.parametrize("warm", [0, 1, 2])
def test_rounds_with_missing_silos(warm: int) -> None:
    oracle = TwoLayers()
    played = oracle.play_cohorts(LGFedAvg(warm_rounds=warm))
    shared, own, alone = oracle.start(), np.stack([oracle.start()] * 3), set[int]()
    for r, ids in enumerate(COHORTS):
        for i in ids:
            personal = r >= warm and (i in alone or not warm)  # before, a body is everybody's
            own[i] = oracle.descend(i, np.where(oracle.body, own[i], shared) if personal else shared, r)
            alone |= {i} if r >= warm else set()
        mean = oracle.mean(own[ids], ids)
        shared = mean if r < warm else np.where(oracle.head, mean, shared)
        close(oracle.vector(played.servers[r + 1].w)[oracle.head], shared[oracle.head])
        if warm:
            close(oracle.vector(played.servers[r + 1].w), shared)
            if r >= warm:
                close(oracle.vector(played.ups[r].w)[:, oracle.body], np.stack([shared[oracle.body]] * len(ids)))
    close(oracle.vector(played.deployed()), own)


def test_a_warm_up_to_the_end_is_fedavg_local_bit_for_bit() -> None:
    oracle = TwoLayers()
    ours, theirs = (oracle.play_cohorts(method) for method in (LGFedAvg(warm_rounds=4), FedAvgLocal()))
    assert torch.equal(ours.servers[-1].w, theirs.servers[-1].w)
    assert torch.equal(ours.deployed(), theirs.deployed())


def test_after_the_warm_up_no_upload_moves_the_body() -> None:
    """Not that of a silo which sends another than it was sent, here by noise."""
    oracle, body = TwoLayers(), TwoLayers.body
    played = oracle.play_cohorts(make("lg-fedavg", {"warm_rounds": 1, "privacy": {"clip": 1.0, "noise": 1.0}}))
    bodies = [oracle.vector(server.w)[body] for server in played.servers]
    assert not np.allclose(bodies[1], bodies[0])
    assert not np.allclose(oracle.vector(played.ups[1].w)[:, body], bodies[1])
    for later in bodies[2:]:
        close(later, bodies[1])


@pytest.mark.parametrize("warm", [0, 2])
def test_a_newcomer_trains_a_body_under_the_head_and_then_both(warm: int) -> None:
    oracle = TwoLayers()
    server = oracle.play_cohorts(LGFedAvg(warm_rounds=warm)).servers[-1]
    newcomers = oracle.engine(LGFedAvg(warm_rounds=warm))
    newcomers.host(server, 4)
    for i in range(3):
        start = oracle.vector(server.w) if warm else oracle.start()
        w = np.where(oracle.head, oracle.vector(server.w), start)
        w = oracle.descend_on(oracle.body, i, w, 4, "personal")
        close(oracle.vector(newcomers.private().inner.w)[i], oracle.descend(i, w, 4, purpose="arrive"))


def test_a_model_without_a_body_is_refused() -> None:
    engine = Oracle().engine(LGFedAvg())
    assert "has no body" in str(engine.method.refusal(engine.roster, engine.model))
