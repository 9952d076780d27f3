"""FedPAC: features are drawn to their class's centroid, bodies averaged, heads combined for each silo."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import CLASSES, Oracle, close
from plain import make_engine
from scipy.optimize import minimize
from torch import nn
from two_layers import COHORTS, HIDDEN, TwoLayers, lacking

from coterie.conformance import Ground, ground_of
from coterie.engine.method import Method
from coterie.methods import make
from coterie.methods.fedpac import FedPAC, combination
from coterie.methods.fedrep import FedRep


@conform("fedpac", {"lam": 0.5, "head_epochs": 2})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(ground_of(method))


def by_class(oracle: TwoLayers, silo: int, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """n_k, μ_k and V of a silo's training samples (the published code's statistics_extraction)."""
    x, y = oracle.data(silo)
    z, n = oracle.features(w, x), np.bincount(y, minlength=CLASSES)
    mu = np.stack([z[y == k].mean(0) if n[k] else np.zeros(HIDDEN) for k in range(CLASSES)])
    p = n / n.sum()
    square = sum(p[k] * (z[y == k] ** 2).sum(1).mean() for k in range(CLASSES) if n[k])
    return n, mu, float((square - (p**2 * (mu**2).sum(1)).sum()) / len(y))


def weights(own: int, n: np.ndarray, mu: np.ndarray, v: np.ndarray) -> np.ndarray:
    """argmin over the simplex, by trying which α_j are above zero and solving for those with a Lagrange multiplier.

    The problem is that of the published code's get_head_agg_weight.
    """
    h = (n / n.sum(1, keepdims=True))[..., None] * mu
    apart = (h[own] - h).reshape(len(h), -1)
    p = np.diag(v) + apart @ apart.T
    best, lowest = np.zeros(len(h)), np.inf
    for some in product([False, True], repeat=len(h)):
        if not any(some):
            continue
        solved = np.linalg.solve(p[np.ix_(some, some)], np.ones(sum(some)))
        alpha = np.zeros(len(h))
        alpha[list(some)] = solved / solved.sum()
        if (alpha >= 0).all() and alpha @ p @ alpha < lowest:
            best, lowest = alpha, alpha @ p @ alpha
    return best


def trained(
    oracle: TwoLayers, i: int, w: np.ndarray, c: np.ndarray, known: np.ndarray, lam: float, r: int, purpose: str
) -> np.ndarray:
    """Head for an epoch, then the body on CE + λ ‖z − c_y‖² / dim z."""
    w = oracle.descend_on(oracle.head, i, w, r, "head", 1)
    x, y = oracle.data(i)
    for b in oracle.batches(i, r, purpose):
        error = (oracle.probabilities(w, x[b]) - np.eye(CLASSES)[y[b]]) / len(b)
        pull = 2 * lam * known[y[b]][:, None] * (oracle.features(w, x[b]) - c[y[b]]) / HIDDEN / len(b)
        w = np.where(oracle.body, w - oracle.training.lr * oracle.back(w, x[b], error, pull), w)
    return w


@pytest.mark.parametrize("make_oracle", [TwoLayers, lacking], ids=["all", "lacking"])
@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_rounds_with_missing_silos(lam: float, make_oracle: Callable[[], TwoLayers]) -> None:
    """In the third round one silo replies, which may lack a class: that keeps its centroid."""
    oracle = make_oracle()
    played = oracle.play_cohorts(FedPAC(lam=lam))
    mean, own = oracle.start(), np.stack([oracle.start()] * 3)
    heads = own[:, oracle.head].copy()
    c, known = np.zeros((CLASSES, HIDDEN)), np.zeros(CLASSES)
    for r, ids in enumerate(COHORTS):
        sent = {i: np.concatenate([mean[oracle.body], heads[i]]) for i in ids}
        before = [by_class(oracle, i, sent[i]) for i in ids]
        for i in ids:
            own[i] = trained(oracle, i, sent[i], c, known, lam, r, "train")
        after = [by_class(oracle, i, own[i]) for i in ids]
        n, mu, v = (np.stack([each[j] for each in before]) for j in range(3))
        alpha = np.stack([weights(place, n, mu, v) for place in range(len(ids))])
        heads[ids] = alpha @ own[ids][:, oracle.head]
        total = sum(each[0] for each in after)
        fresh = sum(each[0][:, None] * each[1] for each in after) / np.maximum(total, 1)[:, None]
        c, known = np.where(total[:, None] > 0, fresh, c), np.maximum(known, total > 0)
        mean = oracle.mean(own[ids], ids)
        server = played.servers[r + 1]
        close(oracle.vector(server.w), mean)
        close(server.alpha[ids][:, ids], alpha)
        close(server.centroids, c)
        close(server.known, known)
    close(oracle.vector(played.deployed()), own)
    close(oracle.vector(oracle.clouds(played))[:, oracle.head], heads)


def test_weights_are_the_quadratic_programs_on_the_simplex() -> None:
    draw = np.random.default_rng(0)
    for k, z in ((2, 3), (7, 2), (30, 16)):
        n, mu = (
            draw.integers(0, 9, (k, 4)) + np.eye(4, dtype=int)[draw.integers(4, size=k)],
            draw.normal(size=(k, 4, z)),
        )
        v = draw.random(k) / 10
        found = combination(*(torch.from_numpy(np.asarray(t, float)) for t in (n, mu, v))).numpy()
        assert found.min() >= 0
        np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)
        h = ((n / n.sum(1, keepdims=True))[..., None] * mu).reshape(k, -1)
        for i in range(k):
            p = np.diag(v) + (h[i] - h) @ (h[i] - h).T
            slope = 2 * p @ found[i]
            assert slope.min() >= slope @ found[i] - 1e-9  # no way down that stays on the simplex
        if k == 7:
            p = np.diag(v) + (h[0] - h) @ (h[0] - h).T
            other = minimize(
                lambda a, p=p: a @ p @ a,
                np.full(k, 1 / k),
                bounds=[(0, 1)] * k,
                constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
                options={"ftol": 1e-14, "maxiter": 1000},
            )
            np.testing.assert_allclose(found[0], other.x, atol=1e-5)


def test_silos_that_are_alike_share_heads_and_others_do_not() -> None:
    n = torch.tensor([[10.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    mu = torch.tensor([[[1.0], [0.0]], [[1.0], [0.0]], [[0.0], [5.0]]])
    alpha = combination(n, mu, torch.tensor([0.01, 0.01, 0.01]))
    torch.testing.assert_close(alpha[0], torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), atol=1e-3, rtol=0)
    assert alpha[2, 2] > 0.99


def test_without_alignment_and_heads_of_others_bodies_begin_as_fedreps() -> None:
    """In the first round all heads are the start and no class has a centroid."""
    oracle = TwoLayers()
    ours, theirs = (oracle.play_cohorts(m, COHORTS[:1]) for m in (FedPAC(), FedRep(head_epochs=1)))
    close(oracle.vector(ours.deployed()), oracle.vector(theirs.deployed()))


def test_a_newcomer_trains_the_mean_model_for_a_round() -> None:
    oracle = TwoLayers()
    server = oracle.play_cohorts(FedPAC()).servers[-1]
    newcomers = oracle.engine(FedPAC())
    newcomers.host(server, 4)
    for i in range(3):
        c, known = server.centroids.numpy(), server.known.numpy()
        expected = trained(oracle, i, oracle.vector(server.w), c, known, 1.0, 4, "arrive")
        close(oracle.vector(newcomers.private().w)[i], expected)


def test_what_it_cannot_do_is_refused() -> None:
    for build, classes, why in (
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)), 0, "are numbers"),
        (lambda: nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 3, 1), nn.Flatten()), 3, "one vector"),
    ):
        engine = make_engine(build, classes=classes, probe=False)
        assert why in str(FedPAC().refusal(engine.roster, engine.model))
    engine = Oracle().engine(make("fedavg", {}))
    assert "no body" in str(FedPAC().refusal(engine.roster, engine.model))
    for wrapper in ({"clip_update": {}}, {"compress": {"bits": 8}}, {"robust": {}}, {"privacy": {}}):
        wrapped = make("fedpac", wrapper)
        engine = TwoLayers().engine(make("fedavg", {}))
        assert next(iter(wrapper)) in str(wrapped.refusal(engine.roster, engine.model))
