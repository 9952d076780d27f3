"""HeurFedAMP against eq. 8 of Huang et al., AAAI 2021, and eq. 10-11 of its preprint."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import NAMES, Oracle, close

from coterie.conformance import Ground
from coterie.engine.method import Method
from coterie.methods.heurfedamp import HeurFedAMP


@conform(
    "heurfedamp",
    {"sigma": 3.0, "tau": 0.8, "beta": 2.0},
    {"tau": [0.2, 0.9, 0.5, 0.7], "beta": [1.0, 2.0, 3.0, 4.0], "warmup_epochs": 1, "common_init": False},
)
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def eq_8(w: np.ndarray, sigma: float, tau: np.ndarray) -> np.ndarray:
    """u_i = (1 − τ_i) w_i + τ_i Σ_{j≠i} softmax_j(σ cos(w_i, w_j)) w_j."""
    m = len(w)
    u = np.empty_like(w)
    for i in range(m):
        cos = [w[i] @ w[j] / np.linalg.norm(w[i]) / np.linalg.norm(w[j]) for j in range(m)]
        scores = np.array([np.exp(sigma * cos[j]) if j != i else 0.0 for j in range(m)])
        u[i] = (1 - tau[i]) * w[i] + tau[i] * (scores / scores.sum()) @ w
    return u


@pytest.mark.parametrize("ids", [None, [0, 2]])
def test_two_rounds_with_a_tau_and_a_beta_for_each_silo(ids: list[int] | None) -> None:
    oracle = Oracle()
    sigma, tau, beta = 4.0, (0.3, 0.6, 0.9), (0.5, 1.0, 2.0)
    w = np.stack([oracle.start(name) for name in NAMES])
    method = HeurFedAMP(sigma=sigma, tau=tau, beta=beta, common_init=False)
    played = oracle.play(method, rounds=2, ids=ids)
    some = ids or [0, 1, 2]
    for k in range(2):
        u = eq_8(w, sigma, np.array(tau))  # an absent silo's last model stands in
        close(oracle.vector(played.downs[k].u), u[some])
        for i in some:
            w[i] = oracle.descend(i, u[i], k, 1 / beta[i], u[i])
        close(oracle.vector(played.servers[k + 1].w), w)
        close(oracle.vector(played.privates[k + 1].w), w)
    close(oracle.vector(played.deployed()), w)


def test_equal_cosines_are_equal_weights() -> None:
    w = torch.eye(4, dtype=torch.float64) + 0.5
    xi = HeurFedAMP(sigma=7.0, tau=0.6).attention(w)
    close(xi, np.full((4, 4), 0.2) + 0.2 * np.eye(4))


def test_a_newcomer_has_the_mean_of_the_members_tau_and_beta() -> None:
    oracle = Oracle()
    tau, beta = (0.3, 0.6, 0.9), (0.5, 1.0, 1.5)
    method = HeurFedAMP(sigma=4.0, tau=tau, beta=beta, common_init=False)
    server = oracle.play(method, rounds=1).servers[-1]
    newcomers = oracle.engine(method)
    newcomers.host(server, 1)
    for i in range(3):
        alone = oracle.descend(i, oracle.start(), 1, purpose="arrive")
        u = eq_8(np.vstack([oracle.vector(server.w), alone]), 4.0, np.array([*tau, 0.6]))[-1]
        settled = oracle.descend(i, u, 1, 1.0, u, purpose="settle")
        close(oracle.vector(newcomers.private().w)[i], settled)


def test_a_list_of_the_wrong_length_is_refused() -> None:
    ground = Ground(HeurFedAMP(tau=(0.5, 0.6)))
    engine = ground.engine()
    reason = ground.method.refusal(engine.roster, engine.model)
    assert reason == "tau has 2 values for 4 silos; give one, or one per silo"
