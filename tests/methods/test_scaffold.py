"""SCAFFOLD against the equations of Karimireddy et al., ICML 2020."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import Oracle, Played, close
from torch import nn

from coterie.conformance import Ground, check_newcomers, check_rows_do_not_matter
from coterie.engine.method import Cohort, Method
from coterie.engine.training import Training
from coterie.methods.fedavg import FedAvg
from coterie.methods.scaffold import SCAFFOLD


@conform("scaffold", {"deploy": "local"}, {"eta_g": 1.5, "control": "I"})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def test_rows_and_newcomers_with_adam_and_own_copies() -> None:
    training = Training(rounds=3, local_epochs=2, batch_size=4, lr=0.05, optimizer="adam")
    for check in (check_rows_do_not_matter, check_newcomers):
        check(Ground(SCAFFOLD(deploy="local"), training=training))


def drifted(
    oracle: Oracle, silo: int, x: np.ndarray, c: np.ndarray, ci: np.ndarray, round: int, momentum: float = 0.0
) -> np.ndarray:
    """y_i after its steps by eq. 3, with heavy-ball momentum where asked."""
    data, labels = oracle.data(silo)
    y, velocity = x, np.zeros_like(x)
    for b in oracle.batches(silo, round):
        velocity = momentum * velocity + oracle.grad(y, data[b], labels[b]) - ci + c
        y = y - oracle.training.lr_at(round) * velocity
    return y


def follow(oracle: Oracle, played: Played, cohort: list[int], rounds: int, eta_g: float, momentum: float = 0) -> None:
    """Holds every upload and every state against eq. 3 to 5; option I with momentum, else option II."""
    x, c, ci = oracle.start(), np.zeros(15), np.zeros((3, 15))
    for r in range(rounds):
        dy, dc = [], []
        for i in cohort:
            y = drifted(oracle, i, x, c, ci[i], r, momentum)
            steps = len(oracle.batches(i, r))
            if momentum:
                new = oracle.grad(x, *oracle.data(i))
            else:
                new = ci[i] - c + (x - y) / (steps * oracle.training.lr_at(r))
            dy.append(y - x)
            dc.append(new - ci[i])
            ci[i] = new
        close(oracle.vector(played.ups[r].dw), dy)
        close(oracle.vector(played.ups[r].dc), dc)
        x = x + eta_g * np.mean(dy, axis=0)
        c = c + len(cohort) / oracle.m * np.mean(dc, axis=0)
        close(oracle.vector(played.servers[r + 1].w), x)
        close(oracle.vector(played.servers[r + 1].c), c)
        close(oracle.vector(played.privates[r + 1].c), ci)


def test_three_rounds_with_option_two_under_a_falling_learning_rate() -> None:
    oracle = Oracle(training=Training(rounds=4, local_epochs=2, batch_size=4, lr=0.1, schedule="cosine"))
    follow(oracle, oracle.play(SCAFFOLD(), rounds=3), [0, 1, 2], 3, eta_g=1.0)


def test_with_some_silos_the_model_moves_by_their_mean_and_c_by_their_share_of_all() -> None:
    oracle = Oracle()
    follow(oracle, oracle.play(SCAFFOLD(eta_g=1.5), rounds=2, ids=[0, 2]), [0, 2], 2, eta_g=1.5)


def test_option_one_with_momentum() -> None:
    oracle = Oracle(training=Training(rounds=4, local_epochs=2, batch_size=4, lr=0.1, momentum=0.5))
    follow(oracle, oracle.play(SCAFFOLD(), rounds=2), [0, 1, 2], 2, eta_g=1.0, momentum=0.5)


def test_options_agree_after_one_full_batch_step() -> None:
    whole = Training(rounds=4, local_epochs=1, batch_size=16, lr=0.1)
    second = Oracle(training=whole).play(SCAFFOLD(), rounds=3)
    first = Oracle(training=whole).play(SCAFFOLD(control="I"), rounds=3)
    close(first.privates[-1].c, second.privates[-1].c)
    close(first.servers[-1].w, second.servers[-1].w)
    several = replace(whole, local_epochs=2)
    apart = [Oracle(training=several).play(SCAFFOLD(control=c), rounds=1).privates[-1].c for c in ("auto", "I")]
    assert not torch.allclose(*apart)


def test_the_servers_variate_stays_the_mean_of_the_silos() -> None:
    played = Oracle().play(SCAFFOLD(), rounds=3, ids=[1, 2])
    close(played.servers[-1].c, played.privates[-1].c.mean(0))
    assert float(played.privates[-1].c[0].abs().max()) == 0


def test_the_first_round_trains_as_fedavg_does() -> None:
    ours, theirs = (Oracle().play(method, rounds=1) for method in (SCAFFOLD(), FedAvg()))
    close(ours.ups[0].dw, theirs.ups[0].w - theirs.downs[0].w)


def test_what_a_silo_deploys() -> None:
    played = Oracle().play(SCAFFOLD(), rounds=1)
    task = played.engine.task(torch.tensor([0, 1, 2]), 0)
    method = SCAFFOLD()
    down = played.downs[0].replace(w=played.servers[1].w)
    close(method.personal(task, down, played.privates[1]).models, played.servers[1].w.expand(3, -1))
    own = Oracle().play(SCAFFOLD(deploy="local"), rounds=1)
    close(method.personal(task, down, own.privates[1]).models, own.downs[0].w + own.ups[0].dw)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@pytest.mark.parametrize("control", ["auto", "I"])
def test_statistics_have_no_control_variate_and_are_averaged(control: str) -> None:
    training = Training(rounds=2, local_epochs=1, batch_size=8, lr=0.1)
    ground = Ground(SCAFFOLD(control=control, eta_g=3.0), normed, training=training)
    check_rows_do_not_matter(ground)
    engine = ground.engine()
    server = ground.method.open(engine.roster, engine.model)
    cohort = Cohort(torch.arange(4), 0, engine.roster, engine.model)
    up = engine.train(cohort, ground.method.send(server, cohort)).up
    after = ground.method.receive(server, cohort, up)
    trained = engine.model.layout.trained
    assert float(up.dc[:, trained:].abs().max()) == 0
    assert float(up.dc[:, :trained].abs().max()) > 0
    close(after.w[trained:], (server.w + up.dw)[:, trained:].mean(0))
