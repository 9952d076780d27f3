"""FedEM against the equations of Marfoq et al., NeurIPS 2021."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import Oracle, close
from torch import nn

from coterie.conformance import Ground, small_silos, trained
from coterie.data.silo import Part, Silo
from coterie.engine import task as task_module
from coterie.engine.method import Cohort, Method
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.task import Task
from coterie.engine.training import Training
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedem import ComponentsDown, FedEM
from coterie.methods.parts.mixture import responsibilities


@conform("fedem", {"components": 2, "adapt_iterations": 3})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def starts(oracle: Oracle, components: int) -> np.ndarray:
    return np.stack([oracle.start(), *(oracle.start("component", m) for m in range(1, components))])


def e_step(oracle: Oracle, silo: int, theta: np.ndarray, pi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """eq. 8 and 9 with plain exponentials: q (c, n) and the new π (c,)."""
    x, y = oracle.data(silo)
    q = np.stack([pi[m] * np.exp(-oracle.losses(theta[m], x, y)) for m in range(len(theta))])
    q /= q.sum(0)
    return q, q.mean(1)


def local_solver(oracle: Oracle, silo: int, theta: np.ndarray, q: np.ndarray, round: int) -> np.ndarray:
    """eq. 10 by stochastic gradient descent."""
    x, y = oracle.data(silo)
    theta = theta.copy()
    for b in oracle.batches(silo, round):
        for m in range(len(theta)):
            theta[m] -= oracle.training.lr * oracle.grad(theta[m], x[b], y[b], weight=q[m][b])
    return theta


@pytest.mark.parametrize("ids", [[0, 1, 2], [0, 2]], ids=["all", "sampled"])
def test_two_rounds_are_eq_8_to_10_and_the_mean_over_those_who_replied(ids: list[int]) -> None:
    oracle = Oracle()
    theta, pi = starts(oracle, 2), np.full((3, 2), 0.5)
    played = oracle.play(FedEM(components=2), rounds=2, ids=ids)
    close(played.privates[0].pi, pi)
    for k in range(2):
        close(oracle.vector(played.downs[k].theta), theta)
        trained = []
        for i in ids:
            q, pi[i] = e_step(oracle, i, theta, pi[i])
            trained.append(local_solver(oracle, i, theta, q, k))
        close(oracle.vector(played.ups[k].theta), trained)
        close(played.privates[k + 1].pi, pi)
        n = oracle.sizes[ids]
        theta = np.einsum("i,icd->cd", n / n.sum(), np.array(trained))
        close(oracle.vector(played.servers[k + 1].theta), theta)
    assert np.abs(pi[0] - 0.5).max() > 1e-3  # or the E-step was not seen at work


def test_the_last_e_steps_weights_mix_probabilities_of_the_new_components() -> None:
    oracle = Oracle()
    method = FedEM(components=3)
    played = oracle.play(method, rounds=1)
    pi = np.stack([e_step(oracle, i, starts(oracle, 3), np.full(3, 1 / 3))[1] for i in range(3)])
    everyone = Cohort(torch.arange(3), 0, played.engine.roster, played.engine.model)
    predictor = played.engine.personal(everyone, method.send(played.servers[1], everyone))
    x = np.random.default_rng(0).normal(size=(5, 4))
    told = played.engine.task(everyone.ids, 0).predict(predictor, torch.from_numpy(x).expand(3, -1, -1))
    theta = oracle.vector(played.servers[1].theta)
    for i in range(3):
        close(told[i], sum(pi[i, m] * oracle.probabilities(theta[m], x) for m in range(3)))
    close(method.trace(played.servers[1], everyone, played.privates[1])["pi"], pi)
    assert method.trace(played.servers[1], everyone, None) == {}


def test_one_component_is_fedavg() -> None:
    single, average = Ground(FedEM(components=1)), Ground(FedAvg())
    _, ours = trained(single, single.engine())
    _, theirs = trained(average, average.engine())
    close(ours, theirs)


def test_a_newcomer_weighs_the_components_and_leaves_them() -> None:
    oracle = Oracle()
    for iterations in (1, 4):
        method = FedEM(components=2, adapt_iterations=iterations)
        played = oracle.play(method, rounds=1)
        theta = oracle.vector(played.servers[1].theta)
        newcomers = oracle.engine(method)
        newcomers.host(played.servers[1], 0)
        for i in range(3):
            pi = np.full(2, 0.5)
            for _ in range(iterations):
                _, pi = e_step(oracle, i, theta, pi)
            close(newcomers.private().pi[i], pi)


def test_responsibilities_survive_losses_that_exponentials_do_not() -> None:
    losses = torch.tensor([[[2000.0], [2001.0]]])
    q = responsibilities(losses, torch.tensor([[0.5, 0.5]]))
    close(q[0, :, 0], torch.tensor([0.0, -1.0]).softmax(0))
    close(responsibilities(losses, torch.tensor([[1.0, 0.0]]))[0, :, 0], [1, 0])


def lines() -> list[Silo]:
    """Four silos whose targets follow one of two linear rules plus noise, in shares of their own."""
    silos = []
    for i, share in enumerate((0.05, 0.3, 0.7, 0.95)):
        draw = np.random.default_rng(i)
        n = 41 - 7 * i
        x = draw.normal(size=(n, 2)).astype(np.float32)
        rule = np.array([[2.0, -1.0], [-1.0, 1.5]])[(draw.random(n) < share).astype(int)]
        part = Part(x, ((x * rule).sum(1) + 0.3 * draw.normal(size=n)).astype(np.float32))
        silos.append(Silo(f"silo-{i}", part, part, part))
    return silos


def exact_em(seed: int, rounds: int = 25) -> tuple[list[float], np.ndarray]:
    """FedEM's own E-step with the argmin of eq. 10, which is weighted least squares: f after each round, and Θ."""
    silos, method = lines(), FedEM(components=2)
    model = Model(lambda: nn.Linear(2, 1), 0, dtype=torch.float64)
    engine = Simulator(method, silos, model, Training(rounds=1), seed)
    task, private = engine.task(torch.arange(4), 0), engine.private()
    theta = method.open(engine.roster, model).theta
    designs = [np.hstack([silo.train.x.astype(np.float64), np.ones((len(silo.train.x), 1))]) for silo in silos]
    targets = [silo.train.y.astype(np.float64) for silo in silos]
    a, y = np.concatenate(designs), np.concatenate(targets)
    values = []
    for _ in range(rounds):
        state = method.begin(task, ComponentsDown(theta=theta), private)
        solved, pi = [], state.pi.numpy()
        for m in range(2):
            q = np.concatenate([state.q[t, m, : len(targets[t])].numpy() for t in range(4)])
            solved.append(np.linalg.solve((a * q[:, None]).T @ a, (a * q[:, None]).T @ y))
        _, private = method.end(task, state, None, private)
        weights = [torch.from_numpy(v) for v in solved]
        theta = torch.stack([model.layout.flatten({"weight": v[:2], "bias": v[2:]}) for v in weights])
        # eq. 6, up to the constant of the Gaussian
        values.append(
            -np.concatenate(
                [
                    np.log(np.exp(-((targets[t][:, None] - designs[t] @ np.array(solved).T) ** 2)) @ pi[t])
                    for t in range(4)
                ]
            ).mean()
        )
    return values, np.array(solved)


def test_the_likelihood_never_falls_when_the_m_step_is_exact() -> None:
    runs = [exact_em(seed) for seed in range(4)]
    for values, _ in runs:
        assert (np.diff(values) <= 1e-12).all()
        assert values[0] - values[-1] > 1e-3
    _, best = min(runs, key=lambda run: run[0][-1])
    np.testing.assert_allclose(sorted(best.tolist()), [[-1.0, 1.5, 0.0], [2.0, -1.0, 0.0]], atol=0.25)


def test_weights_become_one_hot_where_two_groups_contradict_each_other() -> None:
    silos = []
    for i in range(6):
        draw = np.random.default_rng(i)
        x = draw.normal(size=(60, 4)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        part = Part(x, y if i < 3 else 1 - y)
        silos.append(Silo(f"silo-{i}", part, part, part))
    method = FedEM(components=2)
    training = Training(rounds=25, local_epochs=2, batch_size=20, lr=0.5)
    engine = Simulator(method, silos, Model(lambda: nn.Linear(4, 2), 2), training, 0)
    server = method.open(engine.roster, engine.model)
    for r in range(25):
        everyone = Cohort(torch.arange(6), r, engine.roster, engine.model)
        server = method.receive(server, everyone, engine.train(everyone, method.send(server, everyone)).up)
    pi = engine.private().pi.numpy()
    assert pi.max(1).min() > 0.95
    assert len(set(pi[:3].argmax(1))) == 1 and len(set(pi[3:].argmax(1))) == 1
    assert pi[0].argmax() != pi[5].argmax()
    accuracy = engine.measure(everyone, method.send(server, everyone), ("test",)).values["test", "accuracy"]
    assert accuracy.min() > 0.9  # one global model cannot do better than 0.5 on average


def test_every_component_has_batch_statistics_of_its_own() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))

    training = Training(rounds=1, local_epochs=1, batch_size=4, lr=0.1)
    silos = small_silos(sizes=(14, 8, 7))  # with no batch of a single sample, and last batches of different sizes
    ground = Ground(FedEM(components=2), build, silos, training)
    server, together = trained(ground, ground.engine(), last=1)
    _, alone = trained(ground, ground.engine(rows=1), last=1)
    close(together, alone)
    start = ground.method.open(ground.engine().roster, ground.model())
    first = ground.model().layout.trained
    assert not torch.isclose(server.theta[:, first:], start.theta[:, first:]).all(1).any()
    assert not torch.allclose(server.theta[0, first:], server.theta[1, first:])


def test_all_data_are_passed_over_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    losses = Task.losses
    monkeypatch.setattr(Task, "losses", lambda task, *args: calls.append(task.k) or losses(task, *args))
    ground = Ground(FedEM())
    trained(ground, ground.engine(), last=2)
    assert calls == [4, 4]


def test_many_components_are_not_evaluated_on_more_samples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = []
    forward = Model.forward
    monkeypatch.setitem(task_module.SAMPLES_AT_ONCE, "cpu", 64)

    def watched(model: Model, rows: torch.Tensor, x: torch.Tensor, **how: object) -> torch.Tensor:
        at_once.append(len(rows) * x.shape[1])
        return forward(model, rows, x, **how)

    monkeypatch.setattr(Model, "forward", watched)
    ground = Ground(FedEM(components=10), silos=small_silos(sizes=(40, 30)))
    engine = ground.engine()
    everyone = Cohort(torch.arange(2), 0, engine.roster, engine.model)
    down = ground.method.send(ground.method.open(engine.roster, engine.model), everyone)
    with torch.no_grad():
        ground.method.begin(engine.task(everyone.ids, 0), down, engine.private())
        engine.measure(everyone, down, ("train",))
    assert max(at_once) <= 64
