"""FedACS against the equations of Chen, Li and Shen."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import NAMES, Oracle, close

from coterie.conformance import Ground
from coterie.engine.method import Method
from coterie.methods.fedacs import FedACS
from coterie.methods.separate import Separate


@conform("fedacs", {"quantile": 0.2}, {"quantile": 0.7, "warmup_epochs": 1, "common_init": False})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def eq_4(w: np.ndarray, p: float) -> np.ndarray:
    """The intermediate models of those who take part, by the paper's eq. 4."""
    unit = [v / np.sqrt(v @ v) for v in w]
    s = np.array([[1.0 if i == j else a @ b for j, b in enumerate(unit)] for i, a in enumerate(unit)])
    delta = np.quantile(s, p)
    u = np.empty_like(w)
    for i in range(len(w)):
        those = [j for j in range(len(w)) if j == i or s[i, j] > delta + 1e-12]
        u[i] = sum(s[i, j] * w[j] for j in those) / sum(s[i, j] for j in those)
    return u


@pytest.mark.parametrize("p", [0.0, 0.3, 0.6])
def test_two_rounds(p: float) -> None:
    oracle = Oracle()
    w = np.stack([oracle.start(name) for name in NAMES])
    played = oracle.play(FedACS(quantile=p, common_init=False), rounds=2)
    for k in range(2):
        u = eq_4(w, p)
        close(oracle.vector(played.downs[k].u), u)
        w = np.stack([oracle.descend(i, u[i], k) for i in range(3)])  # eq. 5, over the round's batches
        close(oracle.vector(played.ups[k].w), w)
    close(oracle.vector(played.servers[-1].w), w)
    close(oracle.vector(played.privates[-1].w), w)


def test_only_participants_are_compared_and_the_others_keep_their_models() -> None:
    oracle = Oracle()
    w = np.stack([oracle.start(name) for name in NAMES])
    played = oracle.play(FedACS(quantile=0.0, common_init=False), rounds=2, ids=[0, 2])
    for k in range(2):
        u = eq_4(w[[0, 2]], 0.0)
        close(oracle.vector(played.downs[k].u), u)
        w[[0, 2]] = [oracle.descend(i, u[row], k) for row, i in enumerate((0, 2))]
        close(oracle.vector(played.servers[k + 1].w), w)
        close(oracle.vector(played.privates[k + 1].w), w)


def test_a_threshold_that_excludes_everyone_else_is_separate_training_bit_for_bit() -> None:
    oracle = Oracle()
    ours = oracle.play(FedACS(quantile=1.0, common_init=False), rounds=3)
    alone = oracle.play(Separate(common_init=False), rounds=3)
    assert torch.equal(ours.privates[-1].w, alone.privates[-1].w)


@pytest.mark.parametrize("m", [3, 4, 9])
def test_from_one_minus_one_over_m_minus_one_on_nobody_is_left(m: int) -> None:
    w = torch.from_numpy(np.random.default_rng(m).normal(size=(m, 30)))
    edge = 1 - 1 / (m - 1)
    close(FedACS(quantile=edge).attention(w), np.eye(m))
    assert not np.allclose(FedACS(quantile=edge - 0.01).attention(w), np.eye(m))


def test_equal_models_keep_themselves() -> None:
    same = torch.linspace(-1, 2, 40, dtype=torch.float64).expand(5, -1)
    assert torch.equal(FedACS(quantile=0.5).attention(same), torch.eye(5, dtype=torch.float64))


def test_the_quantile_is_of_all_entries_and_the_inequality_is_strict() -> None:
    # cosines 1 (itself), 0.8, 0 and 0.6: sorted entries 0 0 .6 .6 .8 .8 1 1 1, of which the 0.5-quantile is 0.8
    w = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], dtype=torch.float64)
    close(FedACS(quantile=0.5).attention(w), np.eye(3))
    close(
        FedACS(quantile=0.49).attention(w),
        np.array([[1 / 1.8, 0.8 / 1.8, 0], [0.8 / 1.8, 1 / 1.8, 0], [0, 0, 1]]),
    )


def test_a_model_that_points_away_counts_negatively_below_a_negative_threshold() -> None:
    # cosines −0.6, −0.8 and 0.96: the 0.2-quantile of the nine entries lies between −0.8 and −0.6
    w = torch.tensor([[1.0, 0.0], [-0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    total = 1 - 0.6 + 0.96
    xi = FedACS(quantile=0.2).attention(w)
    close(xi[0], np.array([1, -0.6, 0]) / 0.4)
    close(xi[1], np.array([-0.6, 1, 0.96]) / total)


def test_weights_that_sum_to_nothing_or_less_leave_a_silo_its_own_model() -> None:
    # The first silo's cosines with the next two are −0.6 each, so that its weights sum to −0.2; δ is the last pair's.
    w = torch.tensor([[1.0, 0, 0], [-0.6, 0.8, 0], [-0.6, -0.8, 0], [0, -0.8, 0.6], [0, 0.8, -0.6]])
    xi = FedACS(quantile=0.0).attention(w.double())
    close(xi[0], np.array([1.0, 0, 0, 0, 0]))
    close(xi.sum(1), np.ones(5))


def test_a_newcomer_trains_takes_one_attention_step_and_trains_again() -> None:
    oracle, p = Oracle(), 0.3
    played = oracle.play(FedACS(quantile=p, common_init=False), rounds=1)
    members = oracle.vector(played.servers[-1].w)
    newcomers = oracle.engine(FedACS(quantile=p))
    newcomers.host(played.servers[-1], 1)
    for i in range(3):
        alone = oracle.descend(i, oracle.start(), 1, purpose="arrive")
        u = eq_4(np.vstack([members, alone]), p)[-1]
        close(oracle.vector(newcomers.private().w)[i], oracle.descend(i, u, 1, purpose="settle"))
