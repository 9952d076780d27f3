"""Per-FedAvg against Algorithm 1 of Fallah et al., NeurIPS 2020."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import CLASSES, Oracle, close
from torch import nn

from coterie.conformance import FEATURES, Ground, check_rows_do_not_matter
from coterie.engine.method import Cohort, Method
from coterie.engine.training import Training
from coterie.methods.fedavg import FedAvg
from coterie.methods.perfedavg import PerFedAvg, dealt


@conform(
    "perfedavg",
    {"variant": "fo", "alpha": 0.2, "steps": 2},
    {"variant": "hf", "alpha": 0.3, "steps": 2, "delta": 0.01},
)
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def shares(batch: np.ndarray, parts: int) -> list[np.ndarray]:
    """D, D' and D'' of a mini-batch: every second or third sample, or all where that is fewer than two each."""
    return [batch] * parts if len(batch) < 2 * parts else [batch[p::parts] for p in range(parts)]


def meta_descend(oracle: Oracle, silo: int, w: np.ndarray, round: int, method: PerFedAvg) -> np.ndarray:
    """A silo's part of Algorithm 1 with one inner step."""
    x, y = oracle.data(silo)
    a, delta, beta = method.alpha, method.delta, oracle.training.lr
    for batch in oracle.batches(silo, round):
        d, outer, *third = shares(batch, 3 if method.variant == "hf" else 2)
        tilde = w - a * oracle.grad(w, x[d], y[d])
        v = oracle.grad(tilde, x[outer], y[outer])
        for t in third:
            ahead, behind = (oracle.grad(w + sign * delta * v, x[t], y[t]) for sign in (1, -1))
            v = v - a * (ahead - behind) / (2 * delta)
        w = w - beta * v
    return w


@pytest.mark.parametrize("variant", ["fo", "hf"])
@pytest.mark.parametrize("ids", [[0, 1, 2], [0, 2]])
def test_two_rounds_are_algorithm_1(variant: str, ids: list[int]) -> None:
    # Batches of 6: of the silos' 11, 7 and 6 samples some are dealt out, some (5 for hf, 1) are too small for it.
    oracle = Oracle(Training(rounds=4, local_epochs=2, batch_size=6, lr=0.1))
    method = PerFedAvg(variant=variant, alpha=0.4, delta=0.05)  # type: ignore[arg-type]
    played = oracle.play(method, rounds=2, ids=ids)
    w = oracle.start()
    for k in range(2):
        local = np.stack([meta_descend(oracle, i, w, k, method) for i in ids])
        close(oracle.vector(played.ups[k].w), local)
        w = local.mean(0)  # uniform, though the silos' sizes differ
        close(oracle.vector(played.servers[k + 1].w), w)


def hessian_times(oracle: Oracle, w: np.ndarray, x: np.ndarray, v: np.ndarray) -> np.ndarray:
    """∇²f(w) v of softmax regression, exactly: the mean of (diag(p) − pp') ⊗ zz' with z = (x, 1)."""
    p = oracle.probabilities(w, x)
    weight, bias = v[:12].reshape(CLASSES, 4), v[12:]
    logits = x @ weight.T + bias
    error = p * (logits - (p * logits).sum(1, keepdims=True))
    return np.concatenate([(error.T @ x).ravel(), error.sum(0)]) / len(x)


def test_two_steps_of_the_hessian_free_variant_follow_the_chain_rule() -> None:
    oracle = Oracle(Training(rounds=4, local_epochs=1, batch_size=12, lr=0.1))  # one batch of each silo
    alpha = 0.5
    played = oracle.play(PerFedAvg(alpha=alpha, steps=2, delta=1e-4), rounds=1)
    start = oracle.start()
    for i in range(3):
        x, y = oracle.data(i)
        (batch,) = oracle.batches(i, 0)
        d, outer, third = shares(batch, 3)
        first = start - alpha * oracle.grad(start, x[d], y[d])
        second = first - alpha * oracle.grad(first, x[d], y[d])
        v = oracle.grad(second, x[outer], y[outer])
        for w in (first, start):
            v = v - alpha * hessian_times(oracle, w, x[third], v)
        np.testing.assert_allclose(oracle.vector(played.ups[0].w)[i], start - 0.1 * v, atol=1e-8)


def test_the_personal_model_is_steps_along_the_gradient_of_all_own_data() -> None:
    oracle = Oracle()
    engine = oracle.engine(PerFedAvg(alpha=0.3, steps=2))
    everyone = Cohort(torch.arange(3), 0, engine.roster, engine.model)
    method = engine.method
    personal = engine.personal(everyone, method.send(method.open(engine.roster, engine.model), everyone))
    for i in range(3):
        w = oracle.start()
        for _ in range(2):
            w = w - 0.3 * oracle.grad(w, *oracle.data(i))
        close(oracle.vector(personal.models)[i], w)


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_without_an_inner_rate_silos_train_as_in_fedavg(variant: str) -> None:
    oracle = Oracle(Training(rounds=2, local_epochs=2, batch_size=3, lr=0.1))  # too small to deal out: D' is the batch
    ours = oracle.play(PerFedAvg(variant=variant, alpha=0.0), rounds=1)  # type: ignore[arg-type]
    close(ours.ups[0].w, oracle.play(FedAvg(), rounds=1).ups[0].w)


def test_a_batch_is_dealt_out_without_loss_or_overlap() -> None:
    oracle = Oracle(Training(rounds=1, batch_size=11))
    task = oracle.engine(PerFedAvg()).task(torch.arange(3), 0)
    batch = task.first_batch()  # 6 samples of each silo
    batch = replace(batch, mask=torch.tensor([[1.0] * 6, [1.0] * 5 + [0], [1.0] + [0] * 5], dtype=torch.float64))
    parts = dealt(task, batch, 3)
    taken = [[part.index[row][part.mask[row] > 0].tolist() for part in parts] for row in range(3)]
    assert taken == [[[0, 3], [1, 4], [2, 5]], [[0, 1, 2, 3, 4]] * 3, [[0]] * 3]
    for part in parts:
        silo = torch.arange(3)[:, None]
        assert torch.equal(part.x, batch.x[silo, part.index])
        assert torch.equal(part.y, batch.y[silo, part.index])


def test_batch_norm_sees_no_filling() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))

    # Silos of 13, 8, 21 and 5: batches of 9, 8, 5, 4 and 3 samples.
    ground = Ground(PerFedAvg(alpha=0.1), build, training=Training(rounds=3, local_epochs=1, batch_size=9, lr=0.1))
    check_rows_do_not_matter(ground)
    task = ground.engine().task(torch.tensor([1]), 0)
    assert [part.mask.tolist() for part in dealt(task, task.first_batch(), 3)] == [[[1.0] * n] for n in (3, 3, 2)]
