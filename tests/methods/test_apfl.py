"""APFL against Algorithm 1 and eq. 10 of Deng et al., 2020."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import Oracle, Played, close
from torch import nn

from coterie.conformance import Ground, check_rows_do_not_matter
from coterie.engine.method import Cohort, Method
from coterie.engine.training import Training
from coterie.methods.apfl import APFL
from coterie.methods.fedavg import FedAvg
from coterie.methods.separate import Separate


@conform("apfl", {"alpha": 0.3, "learned": False})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def follow(oracle: Oracle, played: Played, cohort: list[int], alpha: float, learned: bool) -> np.ndarray:
    """Holds every upload and every state against the paper; gives α of every silo before and after each round."""
    w, v, a = oracle.start(), np.stack([oracle.start()] * 3), np.full(3, alpha)
    seen = [a.copy()]
    for r in range(len(played.ups)):
        local = {}
        for i in cohort:
            x, y = oracle.data(i)
            wi, lr = w, oracle.training.lr
            for t, b in enumerate(oracle.batches(i, r)):
                g = oracle.grad(a[i] * v[i] + (1 - a[i]) * wi, x[b], y[b])
                slope = (v[i] - wi) @ g
                v[i], wi = v[i] - lr * a[i] * g, wi - lr * oracle.grad(wi, x[b], y[b])
                if learned and t == 0:
                    a[i] = np.clip(a[i] - lr * slope, 0, 1)
            local[i] = wi
        close(oracle.vector(played.ups[r].w), [local[i] for i in cohort])
        w = sum(oracle.sizes[i] * local[i] for i in cohort) / oracle.sizes[cohort].sum()
        close(oracle.vector(played.servers[r + 1].w), w)
        close(oracle.vector(played.privates[r + 1].v), v)
        if learned:
            close(played.privates[r + 1].alpha, a)
        seen.append(a.copy())
    return np.array(seen)


def test_three_rounds_with_a_learned_weight() -> None:
    oracle = Oracle()
    seen = follow(oracle, oracle.play(APFL(alpha=0.3), rounds=3), [0, 1, 2], 0.3, learned=True)
    assert (seen[1] == 0.3).all()  # v_i and w_i start equal, so α_i has no slope in the first round
    assert (seen[2] != 0.3).all() and (seen[3] != seen[2]).all()


def test_two_rounds_with_a_fixed_weight_and_a_silo_away() -> None:
    oracle = Oracle()
    played = oracle.play(APFL(alpha=0.6, learned=False), rounds=2, ids=[0, 2])
    follow(oracle, played, [0, 2], 0.6, learned=False)
    assert played.privates[-1].alpha is None


def test_the_weight_stays_between_zero_and_one() -> None:
    oracle = Oracle(training=Training(rounds=4, local_epochs=1, batch_size=4, lr=2.0))
    seen = follow(oracle, oracle.play(APFL(alpha=0.7), rounds=4), [0, 1, 2], 0.7, learned=True)
    assert seen.min() == 0 or seen.max() == 1


def deployed(oracle: Oracle, method: Method, rounds: int) -> torch.Tensor:
    """The silos' personal models after some rounds."""
    played = oracle.play(method, rounds)
    task = played.engine.task(torch.arange(3), rounds - 1)
    everyone = Cohort.everyone(played.engine.roster, played.engine.model, rounds - 1)
    down = method.host(played.servers[-1], everyone, None)
    return method.personal(task, down, played.privates[-1]).models


def test_the_personal_model_is_the_mixture_with_the_new_global_model() -> None:
    oracle = Oracle()
    played = oracle.play(APFL(alpha=0.3), rounds=2)
    a = played.privates[-1].alpha[:, None]
    close(deployed(oracle, APFL(alpha=0.3), 2), a * played.privates[-1].v + (1 - a) * played.servers[-1].w)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("alpha", "limit"), [(1.0, Separate()), (0.0, FedAvg())])
def test_limits(alpha: float, limit: Method, optimizer: str) -> None:
    oracle = Oracle(training=Training(rounds=4, local_epochs=2, batch_size=4, lr=0.1, optimizer=optimizer))
    close(deployed(oracle, APFL(alpha=alpha, learned=False), 3), deployed(oracle, limit, 3))


def test_batch_norm() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    training = Training(rounds=3, local_epochs=1, batch_size=8, lr=0.1)
    check_rows_do_not_matter(Ground(APFL(), normed, training=training))
