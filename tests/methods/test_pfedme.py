"""pFedMe against Algorithm 1 of T. Dinh et al., NeurIPS 2020."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import CLASSES, Oracle, close
from torch import nn

from coterie.conformance import FEATURES, Ground, check_rows_do_not_matter, rounds, small_silos
from coterie.engine.method import Cohort, Method
from coterie.engine.training import Training
from coterie.methods.fedavg import FedAvg
from coterie.methods.pfedme import PFedMe


@conform("pfedme", {"lam": 4.0, "inner_steps": 2, "inner_lr": 0.05, "beta": 1.5})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def local_rounds(
    oracle: Oracle, silo: int, w: np.ndarray, round: int, method: PFedMe, purpose: str = "train"
) -> tuple[np.ndarray, np.ndarray]:
    """A silo's part of Algorithm 1: w_{i,R} and the last θ."""
    x, y = oracle.data(silo)
    theta = w
    for b in oracle.batches(silo, round, purpose):
        for _ in range(method.inner_steps):
            theta = oracle.proximal(theta, oracle.grad(theta, x[b], y[b]), method.inner_lr, method.lam, w)
        w = w - min(1.0, oracle.training.lr * method.lam) * (w - theta)
    return w, theta


@pytest.mark.parametrize("ids", [[0, 1, 2], [0, 2]])
def test_two_rounds_are_algorithm_1(ids: list[int]) -> None:
    oracle = Oracle()
    method = PFedMe(lam=6.0, inner_steps=3, inner_lr=0.07, beta=1.7)
    played = oracle.play(method, rounds=2, ids=ids)
    w, theta = oracle.start(), np.stack([oracle.start()] * 3)
    for k in range(2):
        made = [local_rounds(oracle, i, w, k, method) for i in ids]
        local = np.stack([each for each, _ in made])
        theta[ids] = [each for _, each in made]
        close(oracle.vector(played.ups[k].w), local)
        close(oracle.vector(played.privates[k + 1].theta), theta)  # an absent silo keeps its own
        w = (1 - 1.7) * w + 1.7 * local.mean(0)  # uniform, though the silos' sizes differ
        close(oracle.vector(played.servers[k + 1].w), w)


def test_theta_solves_the_moreau_envelope() -> None:
    oracle = Oracle(Training(rounds=2, local_epochs=1, batch_size=12, lr=0.1))  # one batch: all of a silo's data
    method = PFedMe(lam=2.0, inner_steps=400, inner_lr=0.2)
    played = oracle.play(method, rounds=1)
    for i in range(3):
        theta = oracle.vector(played.privates[1].theta)[i]
        slope = oracle.grad(theta, *oracle.data(i)) + 2.0 * (theta - oracle.start())
        np.testing.assert_allclose(slope, 0, atol=1e-9)  # of f(θ) + λ/2 ‖θ − w‖² at its minimum
        envelope = 2.0 * (oracle.start() - theta)  # ∇F_i(w) = λ(w − θ̂)
        close(oracle.vector(played.ups[0].w)[i], oracle.start() - 0.1 * envelope)


def test_one_inner_step_of_rate_one_over_lambda_is_half_of_fedavgs_step() -> None:
    """θ = w − g/2λ minimises ⟨g, θ⟩ + λ/2 ‖θ − w‖² + λ/2 ‖θ − w‖²; then ηλ(w − θ) = η g/2."""
    ours, theirs = (Oracle(Training(rounds=2, local_epochs=1, batch_size=12, lr=lr)) for lr in (0.1, 0.05))
    made = ours.play(PFedMe(lam=8.0, inner_steps=1, inner_lr=1 / 8), rounds=1)
    close(made.ups[0].w, theirs.play(FedAvg(), rounds=1).ups[0].w)


@pytest.mark.parametrize(("lam", "inner_lr", "lr"), [(15, 1.0, 0.1), (1e6, 0.1, 1e-7), (15, 0.1, 10), (1e30, 10, 10)])
def test_no_rate_throws_the_models_away(lam: float, inner_lr: float, lr: float) -> None:
    """The explicit steps diverge where inner_lr × λ or η λ is above 2."""
    oracle = Oracle(Training(rounds=20, local_epochs=2, batch_size=4, lr=lr))
    played = oracle.play(PFedMe(lam=lam, inner_lr=inner_lr), rounds=20)
    losses = [oracle.losses(w, *oracle.data(i)).mean() for i, w in enumerate(oracle.vector(played.privates[-1].theta))]
    start = [oracle.losses(oracle.start(), *oracle.data(i)).mean() for i in range(3)]
    assert np.mean(losses) < np.mean(start) + 1e-9


def test_an_outer_step_goes_no_further_than_theta() -> None:
    oracle = Oracle(Training(rounds=1, local_epochs=1, batch_size=12, lr=10.0))
    played = oracle.play(PFedMe(lam=15.0, inner_lr=0.01), rounds=1)
    close(played.ups[0].w, played.privates[1].theta)


def test_personal_is_theta_and_cloud_is_the_global_model() -> None:
    oracle = Oracle()
    method = PFedMe()
    played = oracle.play(method, rounds=1)
    everyone = Cohort(torch.arange(3), 0, played.engine.roster, played.engine.model)
    down = method.send(played.servers[1], everyone)
    task = played.engine.task(everyone.ids, 0)
    assert torch.equal(method.personal(task, down, played.privates[1]).models, played.privates[1].theta)
    close(method.cloud(task, down, played.privates[1]).models, played.servers[1].w.expand(3, -1))


def test_a_newcomer_finds_its_theta_from_the_global_model() -> None:
    oracle = Oracle()
    method = PFedMe(lam=6.0, inner_steps=2)
    played = oracle.play(method, rounds=1)
    newcomers = oracle.engine(method)
    newcomers.host(played.servers[1], 1)
    w = oracle.vector(played.servers[1].w)
    for i in range(3):
        _, theta = local_rounds(oracle, i, w, 1, method, "arrive")
        close(oracle.vector(newcomers.private().theta)[i], theta)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))


def test_the_server_averages_batch_norms_statistics_and_extrapolates_the_weights() -> None:
    training = Training(rounds=3, local_epochs=1, batch_size=9, lr=0.05)
    ground = Ground(PFedMe(beta=2.0, lam=5.0), normed, small_silos(), training)
    check_rows_do_not_matter(ground)
    engine = ground.engine()
    start = ground.method.open(engine.roster, engine.model)
    server, up = rounds(ground, engine, start, 0, 1)
    trained = engine.model.layout.trained
    assert torch.equal(up.w[:, trained:], engine.private().theta[:, trained:])  # w_i has seen what θ_i has
    assert not torch.equal(up.w[:, trained:], start.w[trained:].expand(4, -1))
    close(server.w[trained:], up.w[:, trained:].mean(0))
    close(server.w[:trained], (2 * up.w.mean(0) - start.w)[:trained])
