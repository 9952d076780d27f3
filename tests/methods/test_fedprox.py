"""FedProx against eq. 2 of Li et al., MLSys 2020."""

from collections.abc import Callable

import numpy as np
import torch
from method_cases import conform
from oracle import Oracle, close

from coterie.conformance import Ground
from coterie.engine.method import Method
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx


@conform("fedprox", {"mu": 2.0})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def local(oracle: Oracle, silo: int, w: np.ndarray, mu: float, round: int) -> np.ndarray:
    """Steps on F_k(v) + μ/2 ‖v − w‖² from w."""
    return oracle.descend(silo, w, round, mu, w)


def test_two_rounds() -> None:
    oracle, mu = Oracle(), 0.7
    w = oracle.start()
    played = oracle.play(FedProx(mu=mu), rounds=2)
    for k in range(2):
        trained = np.stack([local(oracle, i, w, mu, k) for i in range(3)])
        close(oracle.vector(played.ups[k].w), trained)
        w = oracle.sizes @ trained / oracle.sizes.sum()
        close(oracle.vector(played.servers[k + 1].w), w)
    close(oracle.vector(played.deployed()), np.stack([w, w, w]))


def test_two_rounds_without_one_silo_average_those_who_replied() -> None:
    oracle, mu = Oracle(), 0.7
    w, n = oracle.start(), oracle.sizes
    played = oracle.play(FedProx(mu=mu), rounds=2, ids=[1, 2])
    for k in range(2):
        w = (n[1] * local(oracle, 1, w, mu, k) + n[2] * local(oracle, 2, w, mu, k)) / (n[1] + n[2])
    close(oracle.vector(played.servers[-1].w), w)


def test_without_a_pull_it_is_fedavg_bit_for_bit() -> None:
    oracle = Oracle()
    for ids in (None, [0, 2]):
        ours = oracle.play(FedProx(mu=0.0), rounds=3, ids=ids)
        theirs = oracle.play(FedAvg(), rounds=3, ids=ids)
        for mine, its in zip(ours.servers, theirs.servers, strict=True):
            assert torch.equal(mine.w, its.w)
