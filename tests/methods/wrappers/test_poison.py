"""How far a poisoned silo can move another's model by attention: measured against the bounds of docs/privacy.md.

u_i = w_i + Σ_j ξ_ij (w_j − w_i), so what silo p does to silo i is its pull ξ_ip ‖w_p − w_i‖.
"""

import math

import numpy as np
import pytest
import torch

from coterie.conformance import Ground, rounds
from coterie.engine.method import Cohort
from coterie.methods import make
from coterie.methods.parts.bank import mixture

HONEST = 9
D = 40


def models(seed: int) -> np.ndarray:
    """Nine honest models around a common start, and a tenth to be set."""
    draw = np.random.default_rng(seed)
    return np.concatenate([draw.normal(size=D) + 0.3 * draw.normal(size=(HONEST, D)), np.zeros((1, D))])


def pulls(options: dict[str, object], name: str, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tenth silo's pull on each of the nine, and ξ."""
    xi = make(name, options).attention(torch.from_numpy(w)).numpy()
    return np.abs(xi[:HONEST, -1]) * np.linalg.norm(w[-1] - w[:HONEST], axis=1), xi


def poisons(w: np.ndarray, seed: int) -> list[np.ndarray]:
    """Models at many distances from a victim, straight ahead and at random, near and absurdly far."""
    draw = np.random.default_rng(seed)
    away = [draw.normal(size=D), w[0], w[0] - w[1]]
    return [w[0] + d * a / np.linalg.norm(a) for a in away for d in np.geomspace(1e-3, 1e6, 60)]


def nearest(w: np.ndarray) -> np.ndarray:
    """How far each honest silo is from the honest one nearest to it."""
    apart = np.linalg.norm(w[:HONEST, None] - w[None, :HONEST], axis=-1)
    return (apart + np.diag([np.inf] * HONEST)).min(1)


@pytest.mark.parametrize("seed", range(3))
def test_fedamps_pull_is_bounded_whatever_the_poison(seed: int) -> None:
    """ξ_ip d ≤ τ (δ_i + √(σ/2e)), δ_i the distance to the nearest honest silo; and poison far away does nothing."""
    sigma, tau, w = 5.0, 0.5, models(seed)
    bound = tau * (nearest(w) + math.sqrt(sigma / (2 * math.e)))
    worst = np.zeros(HONEST)
    for poison in poisons(w, seed):
        w[-1] = poison
        worst = np.maximum(worst, pulls({"sigma": sigma, "tau": tau}, "fedamp", w)[0])
    assert (worst <= bound).all()
    assert worst[0] > 0.05 * bound[0]
    assert pulls({"sigma": sigma, "tau": tau}, "fedamp", w)[0].max() == 0  # the last poison is 10⁶ away


def test_the_bound_of_fedamp_is_nearly_reached_by_a_silo_with_no_neighbour_but_the_poison() -> None:
    """Two honest silos far apart: what keeps the poison's share down is weak, so it takes over until it is as far."""
    w = np.zeros((3, 2))
    w[1, 0] = 10.0
    reached = 0.0
    for d in np.linspace(0, 10, 400):
        w[2, 1] = d
        xi = make("fedamp", {"sigma": 1.0, "tau": 0.5}).attention(torch.from_numpy(w)).numpy()
        reached = max(reached, xi[0, 2] * d)
    bound = 0.5 * (10 + math.sqrt(1 / (2 * math.e)))
    assert 0.9 * bound < reached <= bound


@pytest.mark.parametrize("seed", range(3))
def test_with_automatic_sigma_one_poison_of_ten_cannot_stretch_the_scale(seed: int) -> None:
    """Of 90 distances 18 are to the poisoned silo: wherever it goes, their median is among the 45 smallest honest."""
    w = models(seed)
    apart = np.square(w[:HONEST, None] - w[None, :HONEST]).sum(-1)
    sigma = np.sort(apart[~np.eye(HONEST, dtype=bool)])[44]
    bound = 0.5 * (nearest(w) + math.sqrt(sigma / (2 * math.e)))
    for poison in poisons(w, seed):
        w[-1] = poison
        assert (pulls({"tau": 0.5}, "fedamp", w)[0] <= bound).all()


def test_the_paper_step_is_bounded_by_alpha() -> None:
    """Eq. 5: ξ_ip d = α e^{−d²/σ} d/σ ≤ α/√(2eσ), attained at d² = σ/2."""
    alpha, sigma, w = 0.01, 5.0, models(0)
    bound = alpha / math.sqrt(2 * math.e * sigma)
    options = {"weights": "step", "alpha": alpha, "sigma": sigma}
    worst = 0.0
    for poison in poisons(w, 0):
        w[-1] = poison
        worst = max(worst, pulls(options, "fedamp", w)[0].max())
    assert 0.95 * bound < worst <= bound


@pytest.mark.parametrize("name", ["heurfedamp", "fedacs"])
def test_cosines_do_not_see_length_so_the_pull_is_bounded_by_the_norm_limit_alone(name: str) -> None:
    """ξ_ip ‖w_p − w_i‖ ≤ s (limit · usual + ‖w_i‖), with s = τ for HeurFedAMP and ½ for FedACS."""
    w, limit, share = models(0), 2.0, 0.5
    usual = float(np.quantile(np.linalg.norm(w[:HONEST], axis=1), 0.5))
    bound = share * (limit * usual + np.linalg.norm(w[:HONEST], axis=1))
    for poison in (*poisons(w, 0), 5 * w[0]):
        allowed = min(1.0, limit * usual / np.linalg.norm(poison))
        w[-1] = allowed * poison
        assert (pulls({}, name, w)[0] <= bound).all()
    pulled = []
    for times in (1e2, 1e4):
        w[-1] = times * w[0]
        pulled.append(pulls({}, name, w)[0][0])
    assert pulled[1] > 50 * pulled[0] > 50 * bound[0]


def test_apple_is_moved_by_its_own_weight_on_the_poison() -> None:
    """The mixture that a silo trains on from moves by p_ip ‖Δc_p‖ exactly: at first n_p/n of the poison's length."""
    w, p = torch.from_numpy(models(0)), torch.full((1, HONEST + 1), 0.1, dtype=torch.float64)
    poisoned = w.clone()
    poisoned[-1] += 7.0
    everyone = torch.arange(HONEST + 1)[None]
    moved = mixture(poisoned, everyone, p) - mixture(w, everyone, p)
    assert math.isclose(float(moved.norm()), 0.1 * 7.0 * math.sqrt(D))


def test_fedfomo_takes_nothing_of_a_model_that_does_no_better_on_its_own_validation_data() -> None:
    ground = Ground(make("fedfomo", {}))
    engine = ground.engine()
    server, _ = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 1)
    worse = server.models.clone()
    worse[3] = -50 * worse[3]  # a model that is wrong about everything
    down = ground.method.send(server.replace(models=worse), Cohort(torch.arange(4), 1, engine.roster, engine.model))
    task = engine.task(torch.tensor([2, 0, 1]), 1)
    state = ground.method.begin(task, down.take(task.silos), engine.private().take(task.silos))
    assert (state.weights[:, 3] == 0).all() and (state.weights.sum(1) > 0).any()
