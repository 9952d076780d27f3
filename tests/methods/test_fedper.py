"""FedPer: the body is averaged, heads stay."""

import numpy as np
import pytest
import torch
from oracle import close
from two_layers import BODY, COHORTS, HEAD, TwoLayers

from coterie.methods.fedavg_local import FedAvgLocal
from coterie.methods.fedper import FedPer
from coterie.methods.separate import Separate


def test_rounds_with_missing_silos() -> None:
    """Algorithm 1 and 2: W_B from the server, W_Pj from the silo, SGD on both, W_B back."""
    oracle = TwoLayers()
    played = oracle.play_cohorts(FedPer())
    own = np.stack([oracle.start()] * 3)  # the silos' models as their training left them
    body = oracle.start()
    for r, ids in enumerate(COHORTS):
        for i in ids:
            own[i] = oracle.descend(i, np.where(oracle.body, body, own[i]), r)
        body = oracle.mean(own[ids], ids)
        close(oracle.vector(played.servers[r + 1].w)[oracle.body], body[oracle.body])
        assert (oracle.vector(played.servers[r + 1].w)[oracle.head] == 0).all()
    close(oracle.vector(played.deployed()), own)
    close(oracle.vector(oracle.clouds(played)), np.where(oracle.body, body, own))


def test_the_head_never_leaves() -> None:
    oracle = TwoLayers()
    up = oracle.play_cohorts(FedPer()).ups[0]
    shared = FedPer().shared(oracle.model)
    assert up.w.shape == (3, shared.width)
    assert set(shared.names) == {"0.weight", "0.bias"}
    assert sum(block.size for block in oracle.model.layout.parameters) == BODY + HEAD


def test_without_personal_layers_it_is_fedavg_local_bit_for_bit() -> None:
    oracle = TwoLayers()
    ours, theirs = (oracle.play_cohorts(method) for method in (FedPer(layers=()), FedAvgLocal()))
    assert torch.equal(ours.servers[-1].w, theirs.servers[-1].w)
    assert torch.equal(ours.deployed(), theirs.deployed())


def test_with_all_layers_personal_every_silo_trains_alone_bit_for_bit() -> None:
    oracle = TwoLayers()
    ours, theirs = (oracle.play_cohorts(method) for method in (FedPer(layers=("*",)), Separate()))
    assert torch.equal(ours.deployed(), theirs.deployed())


def test_a_newcomer_trains_a_head_on_the_body_and_then_both() -> None:
    oracle = TwoLayers()
    server = oracle.play_cohorts(FedPer()).servers[-1]
    newcomers = oracle.engine(FedPer())
    newcomers.host(server, 4)
    for i in range(3):
        w = np.where(oracle.body, oracle.vector(server.w), oracle.start())
        w = oracle.descend_on(oracle.head, i, w, 4, "personal")
        close(oracle.vector(newcomers.private().inner.w)[i], oracle.descend(i, w, 4, purpose="arrive"))


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu"])
def test_a_model_that_is_a_head_alone_is_refused(name: str) -> None:
    from oracle import Oracle

    from coterie.methods import make

    engine = Oracle().engine(make(name, {}))
    assert "all columns of this model" in str(engine.method.refusal(engine.roster, engine.model))
