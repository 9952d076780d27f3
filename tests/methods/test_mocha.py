"""MOCHA against the problem and the alternation of Smith et al., NeurIPS 2017."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import Oracle, close
from scipy.linalg import sqrtm
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.conformance import Ground, small_linear
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.methods.mocha import MOCHA, relationship


@conform("mocha", {"lambda1": 0.05, "lambda2": 0.02}, {"lambda1": 0.05, "omega_every": 2, "smoothing": 0.5})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method, small_linear))


def covariance(w: np.ndarray, smoothing: float) -> np.ndarray:
    """Σ = (WᵀW)^½ / tr(WᵀW)^½; a task still at zero stands apart with the others' average norm."""
    inner = w @ w.T
    norms = np.diag(inner)
    inner = inner + np.diag(np.where(norms > 0, 0, norms[norms > 0].mean()))
    root = sqrtm(inner + smoothing * np.trace(inner) / len(w) * np.eye(len(w))).real
    return root / np.trace(root)


def spring(method: MOCHA, towards: np.ndarray, own: float, w: np.ndarray) -> tuple[float, np.ndarray]:
    """R's gradient at v, 2 λ1 (towards + own (v − w)) + 2 λ2 v, as s (v − c): s and c."""
    strength = 2 * (method.lambda1 * own + method.lambda2)
    return strength, -2 * method.lambda1 * (towards - own * w) / strength


def w_step(oracle: Oracle, method: MOCHA, w: np.ndarray, sigma: np.ndarray, ids: list[int], round: int) -> np.ndarray:
    """Proximal steps on F_t and R, the other tasks standing still and R's coupling replaced by ρ times its diagonal."""
    omega = np.linalg.inv(sigma)
    rho = max(np.abs(omega[t]).sum() / omega[t, t] for t in range(len(w)))
    new = w.copy()
    for t in ids:
        towards = sum(omega[t, j] * w[j] for j in range(len(w)))  # half of ∇ tr(W Ω Wᵀ) at w_t
        new[t] = oracle.descend(t, w[t], round, *spring(method, towards, rho * omega[t, t], w[t]))
    return new


@pytest.mark.parametrize("omega_every", [1, 2])
def test_three_rounds(omega_every: int) -> None:
    oracle = Oracle()
    method = MOCHA(lambda1=0.02, lambda2=0.03, smoothing=0.2, omega_every=omega_every)
    w, sigma = np.zeros((3, 15)), np.eye(3) / 3
    played = oracle.play(method, rounds=3)
    close(played.servers[0].sigma, sigma)
    for k in range(3):
        w = w_step(oracle, method, w, sigma, [0, 1, 2], k)
        close(oracle.vector(played.ups[k].w), w)
        close(oracle.vector(played.privates[k + 1].w), w)
        if (k + 1) % omega_every == 0:
            sigma = covariance(w, 0.2)
        close(played.servers[k + 1].sigma, sigma)
    everyone = Cohort.everyone(played.engine.roster, played.engine.model, 2)
    close(method.trace(played.servers[-1], everyone, None)["collaboration"], sigma)


def test_absent_silos_stand_in_with_their_last_model_and_the_unheard_with_none() -> None:
    oracle, method = Oracle(), MOCHA(lambda1=0.02, smoothing=0.2)
    w, sigma = np.zeros((3, 15)), np.eye(3) / 3
    played = oracle.play(method, rounds=2, ids=[0, 2])
    for k in range(2):
        w = w_step(oracle, method, w, sigma, [0, 2], k)
        sigma = covariance(w, 0.2)
        close(oracle.vector(played.servers[k + 1].w), w)
        close(played.servers[k + 1].sigma, sigma)
    close(sigma[1, [0, 2]], 0)
    assert sigma[0, 2] > 0.01


def test_without_regularisation_it_is_training_alone() -> None:
    oracle = Oracle()
    played = oracle.play(MOCHA(lambda1=0.0, lambda2=0.0), rounds=2)
    for i in range(3):
        w = oracle.descend(i, oracle.descend(i, np.zeros(15), 0), 1)
        close(oracle.vector(played.privates[-1].w)[i], w)


def test_the_objective_falls_in_every_w_step_and_in_every_omega_step() -> None:
    oracle = Oracle(replace(Oracle().training, batch_size=64, local_epochs=15, lr=0.05))
    method = MOCHA(lambda1=0.02, lambda2=0.01, smoothing=1e-9)
    played = oracle.play(method, rounds=8)

    def objective(w: np.ndarray, sigma: Tensor) -> float:
        loss = sum(oracle.losses(w[i], *oracle.data(i)).mean() for i in range(3))
        coupling = np.trace(w.T @ np.linalg.inv(sigma.numpy()) @ w)
        return loss + method.lambda1 * coupling + method.lambda2 * np.sum(w**2)

    for before, after in zip(played.servers, played.servers[1:], strict=False):
        old, new = oracle.vector(before.w), oracle.vector(after.w)
        assert objective(new, before.sigma) < objective(old, before.sigma)
        assert objective(new, after.sigma) <= objective(new, before.sigma) + 1e-9


def test_no_other_matrix_of_trace_one_has_a_smaller_penalty() -> None:
    draw = np.random.default_rng(0)
    w = draw.normal(size=(4, 9))
    sigma = relationship(torch.from_numpy(w), 1e-12).numpy()
    close(np.trace(sigma), 1.0)
    least = np.trace(w.T @ np.linalg.inv(sigma) @ w)
    for _ in range(50):
        other = sigma + 0.02 * (lambda a: a @ a.T)(draw.normal(size=(4, 4)))
        other /= np.trace(other)
        assert np.trace(w.T @ np.linalg.inv(other) @ w) > least


def test_alike_tasks_are_related_and_opposite_ones_negatively() -> None:
    one, other = torch.tensor([3.0, 0, 4, 0]), torch.tensor([0, 2.0, 0, 1])
    sigma = relationship(torch.stack([one, one, -one, other]), 1e-6)
    assert sigma[0, 1] > 0.9 * sigma[0, 0]
    assert sigma[0, 2] < -0.9 * sigma[0, 0]
    assert sigma[0, 3].abs() < 1e-12


def test_more_silos_than_parameters_and_equal_silos_have_an_inverse() -> None:
    same = torch.ones(40, 3)
    for w in (same, torch.cat([same, -same]), torch.zeros(5, 3)):
        sigma = relationship(w, 0.1)
        assert torch.isfinite(torch.linalg.inv(sigma)).all()
        close(sigma.trace(), 1.0)


def test_a_pull_too_strong_for_the_learning_rate_does_not_throw_models_away() -> None:
    oracle = Oracle()
    played = oracle.play(MOCHA(lambda1=1e4), rounds=3)
    w = oracle.vector(played.privates[1].w)
    for i in range(3):  # Ω = 3 I and ρ = 1: a pull of strength 6e4 towards zero
        close(w[i], oracle.descend(i, np.zeros(15), 0, 6e4, np.zeros(15)))
    assert np.abs(oracle.vector(played.privates[-1].w)).max() < 1e-3


def test_a_newcomer_trains_alone_then_with_the_relationship_to_the_members() -> None:
    oracle = Oracle()
    method = MOCHA(lambda1=0.02, lambda2=0.01, smoothing=0.2)
    server = oracle.play(method, rounds=2).servers[-1]
    newcomers = oracle.engine(method)
    newcomers.host(server, 2)
    for i in range(3):
        alone = oracle.descend(i, np.zeros(15), 2, 0.02, np.zeros(15), purpose="arrive")
        everyone = np.vstack([oracle.vector(server.w), alone])
        omega = np.linalg.inv(covariance(everyone, 0.2))
        rho = max(np.abs(omega[t]).sum() / omega[t, t] for t in range(4))
        pull = spring(method, omega[3] @ everyone, rho * omega[3, 3], alone)
        close(oracle.vector(newcomers.private().w)[i], oracle.descend(i, alone, 2, *pull, purpose="settle"))


class Bent(nn.Module):
    """One linear layer and a bend that no list of layers shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x))


def test_models_that_are_not_linear_are_refused_in_a_sentence() -> None:
    ground = Ground(MOCHA())
    engine = ground.engine()
    with pytest.raises(BadInput, match="MOCHA: works with linear models only"):
        run_rounds(MOCHA(), engine, engine.roster, engine.model, Training(rounds=1))

    def refused(build: Callable[[], nn.Module]) -> bool:
        return MOCHA().refusal(engine.roster, Model(build, 3)) is not None

    assert refused(Bent)
    assert refused(lambda: nn.Sequential(nn.GRU(5, 3)))
    assert refused(lambda: nn.Sequential(nn.Linear(5, 3), nn.ReLU()))
    assert refused(lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)))
    assert not refused(lambda: nn.Linear(5, 3))
    assert not refused(lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3, bias=False)))
