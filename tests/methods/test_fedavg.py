"""FedAvg against Algorithm 1 of McMahan et al., AISTATS 2017."""

import numpy as np
import torch
from oracle import Oracle, close

from coterie.methods.fedavg import FedAvg
from coterie.methods.parts.averaging import weighted_mean


def test_two_rounds() -> None:
    oracle = Oracle()
    w = oracle.start()
    played = oracle.play(FedAvg(), rounds=2)
    for k in range(2):
        close(oracle.vector(played.downs[k].w), w)
        local = np.stack([oracle.descend(i, w, k) for i in range(3)])
        close(oracle.vector(played.ups[k].w), local)
        w = oracle.sizes @ local / oracle.sizes.sum()  # Σ_k n_k/n w_k
        close(oracle.vector(played.servers[k + 1].w), w)
    close(oracle.vector(played.deployed()), np.stack([w, w, w]))


def test_two_rounds_without_one_silo_average_those_who_replied() -> None:
    oracle = Oracle()
    w, n = oracle.start(), oracle.sizes
    played = oracle.play(FedAvg(), rounds=2, ids=[0, 2])
    for k in range(2):
        w = (n[0] * oracle.descend(0, w, k) + n[2] * oracle.descend(2, w, k)) / (n[0] + n[2])
    close(oracle.vector(played.servers[-1].w), w)
    close(oracle.vector(played.deployed())[1], w)


def test_a_newcomer_gets_the_global_model() -> None:
    oracle = Oracle()
    server = oracle.play(FedAvg(), rounds=1).servers[-1]
    assert torch.equal(oracle.engine(FedAvg()).host(server, 1).w, server.w)


def test_the_mean_of_components_is_taken_one_by_one() -> None:
    models = torch.arange(12, dtype=torch.float64).reshape(2, 3, 2)
    close(weighted_mean(models, torch.tensor([1, 3])), (models[0] + 3 * models[1]) / 4)
