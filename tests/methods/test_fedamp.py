"""FedAMP against the equations of Huang et al., AAAI 2021."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conflict import CLASSES, FEATURES, two_groups
from method_cases import conform
from oracle import Oracle, close
from torch import nn

from coterie.conformance import Ground
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.methods.fedamp import FedAMP
from coterie.methods.heurfedamp import HeurFedAMP
from coterie.methods.parts.schedules import StepDecay, at


@conform(
    "fedamp",
    {"beta": 2.0, "tau": 0.8},
    {"weights": "step", "alpha": 0.2, "sigma": 1.0, "beta": 2.0},
    {"function": "scad", "sigma": 50.0, "warmup_epochs": 1, "common_init": False, "beta": 1.0},
)
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def distances(w: np.ndarray) -> np.ndarray:
    """‖w_i − w_j‖²."""
    return np.array([[np.sum((a - b) ** 2) for b in w] for a in w])


def test_two_rounds_with_attention_weights() -> None:
    oracle = Oracle()
    tau, sigma, beta = 0.7, 0.5, 2.0
    w = np.stack([oracle.start(name) for name in ("north", "south", "east")])
    played = oracle.play(FedAMP(tau=tau, sigma=sigma, beta=beta, common_init=False), rounds=2)
    for k in range(2):
        t = distances(w)
        u = np.empty_like(w)
        for i in range(3):
            scores = np.array([np.exp(-t[i, j] / sigma) if j != i else 0.0 for j in range(3)])
            u[i] = (1 - tau) * w[i] + tau * (scores / scores.sum()) @ w
        close(oracle.vector(played.downs[k].u), u)
        w = np.stack([oracle.descend(i, u[i], k, 1 / beta, u[i]) for i in range(3)])
        close(oracle.vector(played.ups[k].w), w)
    close(oracle.vector(played.privates[-1].w), w)


def test_a_round_with_step_weights_is_eq_5_and_6() -> None:
    oracle = Oracle()
    alpha, sigma, beta = 0.3, 2.0, 5.0
    w = np.stack([oracle.start(name) for name in ("north", "south", "east")])
    method = FedAMP(weights="step", alpha=alpha, sigma=sigma, beta=beta, common_init=False)
    played = oracle.play(method, rounds=1)
    t = distances(w)
    for i in range(3):
        slopes = [alpha * np.exp(-t[i, j] / sigma) / sigma if j != i else 0.0 for j in range(3)]
        u = (1 - sum(slopes)) * w[i] + np.array(slopes) @ w
        close(oracle.vector(played.downs[0].u)[i], u)
        close(oracle.vector(played.ups[0].w)[i], oracle.descend(i, u, 0, 1 / beta, u))


def test_auto_sigma_is_the_median_distance() -> None:
    w = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)  # squared distances 1, 9, 10
    auto = FedAMP(tau=0.5).attention(w)
    close(auto, FedAMP(tau=0.5, sigma=9.0).attention(w))


def test_too_large_an_alpha_is_refused_with_the_largest_that_works() -> None:
    w = torch.zeros(3, 2, dtype=torch.float64)  # A' = 1/σ for both others: the largest α is σ/2
    with pytest.raises(BadInput, match=r"largest that works in this round is 0\.5"):
        FedAMP(weights="step", alpha=0.9, sigma=1.0).attention(w)
    clipped = FedAMP(weights="step", alpha=0.9, sigma=1.0, clip=True).attention(w)
    close(clipped, np.array([[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]))


@pytest.mark.parametrize("epochs", [1, 5])
@pytest.mark.parametrize("common", [True, False])
def test_after_a_warm_up_attention_is_over_the_models_that_silos_trained_alone(epochs: int, common: bool) -> None:
    """The preprint's start: w_i^0 is trained alone and collected; u_i^1 is a mixture of these, β_1 the first β."""
    oracle, beta = Oracle(), StepDecay(2.0, 0.5, 1)
    method = FedAMP(warmup_epochs=epochs, beta=beta, sigma=0.5, common_init=common)
    played = oracle.play(method, rounds=3)
    alone = []
    for i, name in enumerate(("north", "south", "east")):
        w = oracle.start(*([] if common else [name]))
        if epochs > 2:  # a round has two epochs of its own
            w = oracle.descend(i, w, 0, purpose="warmup", epochs=epochs - 2)
        alone.append(oracle.descend(i, w, 0))
    w = np.stack(alone)
    close(oracle.vector(played.ups[0].w), w)
    for k in (1, 2):
        u = method.attention(torch.from_numpy(w)).numpy() @ w
        close(oracle.vector(played.downs[k].u), u)
        w = np.stack([oracle.descend(i, u[i], k, 1 / beta.at(k - 1), u[i]) for i in range(3)])
        close(oracle.vector(played.ups[k].w), w)


def test_a_silo_that_comes_late_warms_up_in_its_own_first_round() -> None:
    oracle = Oracle()
    method = FedAMP(warmup_epochs=2, beta=2.0)
    engine = oracle.engine(method)
    server = method.open(engine.roster, engine.model)
    for r, ids in enumerate(([0, 1], [0, 1, 2])):
        cohort = Cohort(torch.tensor(ids), r, engine.roster, engine.model)
        up = engine.train(cohort, method.send(server, cohort)).up
        server = method.receive(server, cohort, up)
    close(oracle.vector(up.w)[2], oracle.descend(2, oracle.start(), 1))


@pytest.mark.parametrize(
    "method", [FedAMP(beta=StepDecay()), HeurFedAMP(beta=StepDecay())], ids=["fedamp", "heurfedamp"]
)
def test_a_beta_that_has_fallen_below_all_numbers_leaves_silos_at_their_cloud_models(method: Method) -> None:
    oracle = Oracle()
    engine = oracle.engine(method)
    cohort = Cohort.everyone(engine.roster, engine.model, 20_000)
    down = method.send(method.open(engine.roster, engine.model), cohort)
    assert torch.equal(engine.train(cohort, down).up.w, down.u)


@pytest.mark.parametrize("method", [FedAMP(), HeurFedAMP()], ids=["fedamp", "heurfedamp"])
def test_beta_falls_as_in_the_preprint_and_not_below_where_its_experiments_end(method: FedAMP | HeurFedAMP) -> None:
    found = [at(method.beta, round) for round in (0, 29, 30, 60, 90, 120, 400)]
    assert found == pytest.approx([1e4, 1e4, 1e3, 1e2, 10, 10, 10])


def test_a_missing_silos_last_model_stands_in() -> None:
    oracle = Oracle()
    played = oracle.play(FedAMP(), rounds=1, ids=[0, 2])
    close(oracle.vector(played.servers[1].w)[1], oracle.start())
    assert not np.allclose(oracle.vector(played.servers[1].w)[0], oracle.start())


@pytest.mark.parametrize("method", [FedAMP(sigma_factor=0.2), HeurFedAMP(sigma=20.0)], ids=["fedamp", "heurfedamp"])
def test_silos_that_agree_find_each_other(method: FedAMP | HeurFedAMP) -> None:
    """Two groups with conflicting labels: ξ is block-diagonal, though nobody was told of groups."""
    training = Training(rounds=10, local_epochs=5, batch_size=10, lr=0.2)
    model = Model(lambda: nn.Linear(FEATURES, CLASSES), CLASSES)
    engine = Simulator(method, two_groups(), model, training, seed=0)
    xi = run_rounds(method, engine, engine.roster, model, training).traces["collaboration"][-1]
    alike = np.add.outer(np.arange(6), np.arange(6)) % 2 == 0
    others = ~np.eye(6, dtype=bool)
    within = (xi * (alike & others)).sum(1) / (xi * others).sum(1)
    assert (within > 0.95).all(), within
