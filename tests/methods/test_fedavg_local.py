"""FedAvg-local: FedAvg's rounds, of which a silo deploys its own copy."""

import numpy as np
import torch
from oracle import Oracle, close

from coterie.methods.fedavg import FedAvg
from coterie.methods.fedavg_local import FedAvgLocal


def test_two_rounds_deploy_the_copy_after_local_training() -> None:
    oracle = Oracle()
    w = oracle.start()
    played = oracle.play(FedAvgLocal(), rounds=2)
    for k in range(2):
        copies = np.stack([oracle.descend(i, w, k) for i in range(3)])
        close(oracle.vector(played.privates[k + 1].w), copies)
        w = oracle.sizes @ copies / oracle.sizes.sum()
        close(oracle.vector(played.servers[k + 1].w), w)
    close(oracle.vector(played.deployed()), copies)


def test_who_is_absent_keeps_the_copy_of_its_last_round() -> None:
    oracle = Oracle()
    played = oracle.play(FedAvgLocal(), rounds=2, ids=[0, 2])
    close(oracle.vector(played.deployed())[1], oracle.start())
    w, n = oracle.start(), oracle.sizes
    w = (n[0] * oracle.descend(0, w, 0) + n[2] * oracle.descend(2, w, 0)) / (n[0] + n[2])
    close(oracle.vector(played.deployed())[2], oracle.descend(2, w, 1))


def test_the_global_model_is_fedavgs_bit_for_bit() -> None:
    oracle = Oracle()
    ours, theirs = oracle.play(FedAvgLocal(), rounds=3), oracle.play(FedAvg(), rounds=3)
    assert torch.equal(ours.servers[-1].w, theirs.servers[-1].w)


def test_a_newcomer_trains_its_own_copy() -> None:
    oracle = Oracle()
    server = oracle.play(FedAvgLocal(), rounds=1).servers[-1]
    newcomers = oracle.engine(FedAvgLocal())
    newcomers.host(server, 1)
    for i in range(3):
        expected = oracle.descend(i, oracle.vector(server.w), 1, purpose="arrive")
        close(oracle.vector(newcomers.private().w)[i], expected)
