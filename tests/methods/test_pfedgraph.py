"""pFedGraph against the two problems of Ye et al., ICML 2023: the server's for the graph, the silo's for its model."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conflict import two_groups
from method_cases import conform
from oracle import Oracle, close
from scipy.optimize import brentq
from torch import nn

from coterie.conformance import Ground, check_rows_do_not_matter
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.methods import make
from coterie.methods.fedavg_local import FedAvgLocal
from coterie.methods.pfedgraph import PFedGraph


@conform("pfedgraph", {"alpha": 0.2, "lam": 0.5})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    length = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / length) if length else 0.0


def row(changes: np.ndarray, own: np.ndarray, sizes: np.ndarray, alpha: float) -> np.ndarray:
    """argmin α ‖x − p‖² − Σ_j cos_j x_j over the simplex: where the gradient is the same for all x_j > 0 (KKT).

    The problem is that of the published code's optimizing_graph_matrix_neighbor.
    """
    p = sizes / sizes.sum()
    best = p + np.array([cosine(own, change) for change in changes]) / (2 * alpha)
    multiplier = brentq(lambda t: np.maximum(0, best - t).sum() - 1, best.min() - 1, best.max(), xtol=1e-15, rtol=1e-14)
    return np.maximum(0, best - multiplier)


def descend(oracle: Oracle, silo: int, u: np.ndarray, r: int, lam: float, purpose: str = "train") -> np.ndarray:
    """SGD on F_i(w) − λ cos(w, u), from u."""
    x, y = oracle.data(silo)
    w = u
    for b in oracle.batches(silo, r, purpose):
        a, c = np.linalg.norm(w), np.linalg.norm(u)
        slope = u / (a * c) - (w @ u) * w / (a**3 * c)  # of w·u / (‖w‖ ‖u‖), by the quotient rule
        w = w - oracle.training.lr * (oracle.grad(w, x[b], y[b]) - lam * slope)
    return w


@pytest.mark.parametrize("cohorts", [[[0, 1, 2]] * 4, [[0, 2], [0, 1], [1], [0, 1, 2]]], ids=["all", "some"])
def test_four_rounds(cohorts: list[list[int]]) -> None:
    oracle, alpha, lam = Oracle(), 0.3, 0.5
    played = oracle.play(PFedGraph(alpha=alpha, lam=lam), rounds=4, ids=cohorts)
    start = oracle.start()
    w, heard, sparse = np.stack([start] * 3), [], False
    for r, cohort in enumerate(cohorts):
        new = w.copy()
        for place, i in enumerate(cohort):
            u = start
            if heard:
                x = row(w[heard] - start, w[i] - start, oracle.sizes[heard], alpha)
                u, sparse = x @ w[heard], sparse or bool((x == 0).any())
            close(oracle.vector(played.downs[r].u)[place], u)
            new[i] = descend(oracle, i, u, r, lam)
        w, heard = new, sorted({*heard, *cohort})
        close(oracle.vector(played.ups[r].w), w[cohort])
        close(oracle.vector(played.servers[r + 1].w), w)
        close(oracle.vector(played.privates[r + 1].w), w)
    assert sparse, "every silo learns from all: the constraints never counted"


def test_the_slope_of_the_cosine_is_that_of_differences() -> None:
    """The term pulls towards u: along it the cosine rises, which public code has the other way round."""
    oracle = Oracle(training=Training(rounds=1, local_epochs=1, batch_size=16, lr=1.0))
    method = PFedGraph(lam=0.3)
    engine = oracle.engine(method)
    task = engine.task(torch.arange(1), 0)
    draw = np.random.default_rng(1)
    w, u = draw.normal(size=15), draw.normal(size=15)
    state = method.begin(task, method.down(u=oracle.row(u)[None]), engine.private().take(torch.arange(1)))
    x, y = oracle.data(0)
    moved = task.run(method.step, state.replace(w=oracle.row(w)[None]), "train").w
    step = w - oracle.grad(w, x, y) - oracle.vector(moved)[0]  # what the term alone took away: −λ ∇cos
    apart = 1e-6 * np.eye(15)
    slope = [(cosine(w + e, u) - cosine(w - e, u)) / 2e-6 for e in apart]
    np.testing.assert_allclose(step, -0.3 * np.array(slope), rtol=1e-6, atol=1e-9)


def test_with_a_prior_alone_it_starts_from_fedavgs_mean() -> None:
    oracle = Oracle()
    ours = oracle.play(PFedGraph(alpha=1e12, lam=0.0), rounds=3)
    plain = oracle.play(FedAvgLocal(), rounds=3)
    close(ours.ups[-1].w, plain.ups[-1].w)
    close(ours.deployed(), plain.deployed())


def test_with_the_cosines_alone_a_silo_learns_from_the_most_alike() -> None:
    """With α → 0 that is itself, whose cosine is one."""
    oracle, method = Oracle(), PFedGraph(alpha=1e-9)
    played = oracle.play(method, rounds=2)
    everyone = Cohort.everyone(played.engine.roster, played.engine.model, 2)
    close(method.trace(played.servers[-1], everyone, None)["collaboration"], np.eye(3))


def test_silos_of_a_group_learn_from_each_other() -> None:
    method, training = PFedGraph(alpha=0.5), Training(rounds=4, local_epochs=3, batch_size=20, lr=0.1)
    model = Model(lambda: nn.Linear(5, 3), 3, dtype=torch.float64)
    engine = Simulator(method, two_groups(), model, training, seed=0)
    last = run_rounds(method, engine, engine.roster, model, training).traces["collaboration"][-1]
    close(last.sum(1), np.ones(6))
    for i in range(6):
        assert sum(last[i, j] for j in range(6) if j % 2 == i % 2) > 0.9
        assert any(last[i, j] > 0.05 for j in range(6) if j != i and j % 2 == i % 2), "it learns from nobody"


def test_a_newcomer_trains_alone_then_from_the_mixture_that_its_change_gives_it() -> None:
    oracle, alpha, lam = Oracle(), 0.3, 0.5
    method = PFedGraph(alpha=alpha, lam=lam)
    played = oracle.play(method, rounds=2, ids=[0, 2])
    newcomer = Simulator(method, oracle.silos[1:2], oracle.model, oracle.training, oracle.seed)
    newcomer.host(played.servers[-1], 2)
    start, stored = oracle.start(), oracle.vector(played.servers[-1].w)[[0, 2]]
    own = oracle.descend(1, start, 2, purpose="arrive")
    models = np.concatenate([stored, own[None]])
    u = row(models - start, own - start, oracle.sizes[[0, 2, 1]], alpha) @ models
    close(oracle.vector(newcomer.private().w)[0], descend(oracle, 1, u, 2, lam, "settle"))


def test_a_model_at_zero_has_no_direction_and_trains_on() -> None:
    method = PFedGraph()
    engine = Oracle().engine(method)
    task = engine.task(torch.arange(1), 0)
    nothing = torch.zeros(1, engine.model.width, dtype=torch.float64)
    state = method.begin(task, method.down(u=nothing), engine.private().take(torch.arange(1)))
    assert task.run(method.step, state, "train").w.isfinite().all()


def test_robust_averages_refuse() -> None:
    method = make("pfedgraph", {"robust": {}})
    engine = Ground(method).engine()
    assert "does not average" in (method.refusal(engine.roster, engine.model) or "")


def test_batch_norm() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    training = Training(rounds=3, local_epochs=1, batch_size=8, lr=0.1)
    check_rows_do_not_matter(Ground(PFedGraph(), normed, training=training))
