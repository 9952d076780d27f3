"""DP-SGD against NumPy: every sample's gradient is clipped, the sum noised, and batches are drawn by chance."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle import NAMES, SIZES, Oracle, close
from scipy.stats import binom, kstest

from coterie.engine import dpsgd
from coterie.engine.dpsgd import DPSGD, PoissonPlan, sampling
from coterie.engine.task import Batch, Task, Weights, plain_step
from coterie.errors import BadInput
from coterie.methods import make

CLIP, SIGMA = 0.5, 1.5


def task_of(oracle: Oracle) -> Task:
    return oracle.engine(make("fedavg", {})).task(torch.arange(oracle.m), 0)


def private(sigma: float = SIGMA, clip: float = CLIP) -> DPSGD:
    return DPSGD(clip, torch.full((len(SIZES),), sigma, dtype=torch.float64))


def plan_of(oracle: Oracle, silo: int, how: DPSGD, epochs: int = 2) -> PoissonPlan:
    counts = np.array([SIZES[silo]])
    return PoissonPlan((NAMES[silo],), counts, oracle.training.batch_size, epochs, how, oracle.seed, "train", 0)


def test_a_round_of_training_is_numpys_dp_sgd_with_the_same_draws() -> None:
    """Abadi et al., Algorithm 1: w ← w − η/L (Σ_i g_i / max(1, ‖g_i‖/C) + N(0, σ²C²)), L the expected batch."""
    oracle, how = Oracle(), private()
    task, start = task_of(oracle), oracle.start()
    w = oracle.row(start).expand(oracle.m, -1).clone()
    ours = task.run(plain_step, Weights(w=w, opt=task.optimizer.init(w)), "train", dpsgd=how).w
    draws = how.keyed("", oracle.seed, "train", 0)
    clipped = 0
    for silo, name in enumerate(NAMES):
        x, y = oracle.data(silo)
        theirs, expected = start, min(oracle.training.batch_size, len(x))
        for t, step in enumerate(plan_of(oracle, silo, draws).order[0]):
            total = np.zeros_like(theirs)
            for i in step[step >= 0]:
                g = oracle.grad(theirs, x[i : i + 1], y[i : i + 1])
                clipped += np.linalg.norm(g) > CLIP
                total += g / max(1.0, np.linalg.norm(g) / CLIP)
            total += SIGMA * CLIP * draws.gaussian(name, t, len(total))
            theirs = theirs - oracle.training.lr * total / expected
        close(oracle.vector(ours[silo]), theirs)
    assert clipped > 10


def test_without_noise_and_with_all_samples_in_every_batch_it_is_gradient_descent() -> None:
    oracle = Oracle()
    task = replace(task_of(oracle), batch_size=max(SIZES))
    w = oracle.row(oracle.start()).expand(oracle.m, -1).clone()
    ours = task.run(plain_step, Weights(w=w, opt=task.optimizer.init(w)), "train", dpsgd=private(0.0, 1e9)).w
    for silo in range(oracle.m):
        x, y = oracle.data(silo)
        theirs = oracle.start()
        for _ in range(2):
            theirs = theirs - oracle.training.lr * oracle.grad(theirs, x, y)
        close(oracle.vector(ours[silo]), theirs)


def test_several_models_of_a_silo_are_clipped_as_one_vector_and_a_few_samples_at_a_time_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracle = Oracle()
    task = replace(task_of(oracle), dpsgd=private(0.0))
    batch = task.first_batch()
    models = torch.stack([oracle.row(oracle.start(name)) for name in ("a", "b")]).expand(oracle.m, 2, -1)
    ours = task.grad(models, batch).grads
    monkeypatch.setattr(dpsgd, "NUMBERS_AT_ONCE", 1)
    torch.testing.assert_close(task.grad(models, batch).grads, ours)
    for silo in range(oracle.m):
        x, y = oracle.data(silo)
        total = np.zeros((2, 15))
        for i in batch.index[silo].tolist():
            both = np.stack([oracle.grad(oracle.start(name), x[i : i + 1], y[i : i + 1]) for name in ("a", "b")])
            total += both / max(1.0, np.linalg.norm(both) / CLIP)
        close(oracle.vector(ours[silo]), total / oracle.training.batch_size)


def test_each_sample_is_in_each_batch_by_chance() -> None:
    """The sizes of batches are binomial, and every sample is in as many as another."""
    n, batch, epochs = 300, 24, 40
    how = private().keyed("", 1, "train", 0)
    plan = PoissonPlan(("north",), np.array([n]), batch, epochs, how, 1, "train", 0)
    q, steps = sampling(n, batch, epochs)
    assert (q, steps, int(plan.steps[0])) == (0.08, 520, 520)
    sizes = (plan.order[0] >= 0).sum(1)
    spread = binom(n, q).cdf(sizes) - binom(n, q).pmf(sizes) * np.random.default_rng(0).random(len(sizes))
    assert kstest(spread, "uniform").pvalue > 0.01
    times = np.bincount(plan.order[plan.order >= 0], minlength=n)
    assert ((times - steps * q) ** 2 / (steps * q * (1 - q))).sum() == pytest.approx(n, rel=0.2)
    for row in plan.order[0]:
        inside = row[row >= 0]
        assert len({*inside}) == len(inside) and (np.diff(inside) > 0).all()


def test_a_batch_that_has_all_samples_has_each_once() -> None:
    plan = plan_of(Oracle(), 2, private())
    whole = PoissonPlan(("east",), np.array([6]), 8, 3, private(), 0)
    assert whole.order.tolist() == [[[0, 1, 2, 3, 4, 5]] * 3] and plan.width(0) <= plan.batch


def test_draws_go_by_the_seed_in_a_simulation_and_are_fresh_where_there_is_a_secret() -> None:
    open_, other = (private().keyed("", 1, "train", round) for round in (0, 1))
    assert np.array_equal(open_.gaussian("a", 0, 9), private().keyed("", 1, "train", 0).gaussian("a", 0, 9))
    for name, step in (("b", 0), ("a", 1)):
        assert not np.array_equal(open_.gaussian("a", 0, 9), open_.gaussian(name, step, 9))
    assert not np.array_equal(open_.gaussian("a", 0, 9), other.gaussian("a", 0, 9))
    one, again = (private().keyed("mine", 1, "train", 0) for _ in range(2))
    assert not np.array_equal(one.gaussian("a", 0, 9), again.gaussian("a", 0, 9))
    assert not np.array_equal(one.uniform("a", 0, 9), again.uniform("a", 0, 9))
    assert kstest(one.gaussian("a", 0, 20_000), "norm").pvalue > 0.01


def test_noise_is_in_the_columns_of_weights_alone() -> None:
    oracle = Oracle()
    noise = private().noise_of(oracle.model, NAMES, torch.arange(3), 1, 0)
    weights = oracle.model.layout.places({"weight", "bias"})
    assert oracle.model.width > 15 and (noise[:, :, ~weights] == 0).all() and (noise[:, :, weights] != 0).all()


def test_a_sample_whose_gradient_is_not_finite_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = Oracle()
    task = replace(task_of(oracle), dpsgd=private(0.0))
    batch = task.first_batch()
    w = oracle.row(oracle.start()).expand(oracle.m, -1)
    bad = batch.x.clone()
    bad[:, 0] = torch.inf
    without = replace(batch, mask=batch.mask.clone().index_fill_(1, torch.tensor([0]), 0.0))
    torch.testing.assert_close(task.grad(w, replace(batch, x=bad)).grads, task.grad(w, without).grads)


def test_no_loss_of_a_batch_is_given_and_no_other_loss_is_taken() -> None:
    oracle = Oracle()
    task = replace(task_of(oracle), dpsgd=private())
    w, batch = oracle.row(oracle.start()).expand(oracle.m, -1), task.first_batch()
    assert task.grad(w, batch).losses.isnan().all()

    def loss(out: torch.Tensor, batch: Batch, features: torch.Tensor | None) -> torch.Tensor:
        return out.sum(-1)

    with pytest.raises(BadInput, match="plain loss"):
        task.grad(w, batch, loss=loss)
    with pytest.raises(BadInput, match="class_weight = 'none'"):
        replace(task, balanced=True).grad(w, batch)
