"""FedRep: head and body train in turns, bodies are averaged."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import close
from plain import CLASSES, by_steps, make_engine
from torch import nn
from two_layers import COHORTS, TwoLayers

from coterie.conformance import Ground, ground_of
from coterie.engine.method import Cohort, Method
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedrep import FedRep


@conform("fedrep", {"head_epochs": 2, "compress": {"top_k": 0.3}})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(ground_of(method))


@pytest.mark.parametrize("epochs", [0, 3])
def test_rounds_with_missing_silos(epochs: int) -> None:
    oracle = TwoLayers()
    played = oracle.play_cohorts(FedRep(head_epochs=epochs), COHORTS[:2])
    own, body = np.stack([oracle.start()] * 3), oracle.start()
    for r, ids in enumerate(COHORTS[:2]):
        for i in ids:
            w = np.where(oracle.body, body, own[i])
            w = oracle.descend_on(oracle.head, i, w, r, "head", epochs) if epochs else w
            own[i] = oracle.descend_on(oracle.body, i, w, r)
        body = oracle.mean(own[ids], ids)
        close(oracle.vector(played.servers[r + 1].w)[oracle.body], body[oracle.body])
    close(oracle.vector(played.deployed()), own)
    close(oracle.vector(oracle.clouds(played)), np.where(oracle.body, body, own))


def test_heads_of_silos_that_were_never_asked_stay_at_their_start() -> None:
    oracle = TwoLayers()
    played = oracle.play_cohorts(FedRep(), [[0, 2], [0, 2]])
    close(oracle.vector(played.deployed())[1], oracle.start())


def test_without_epochs_of_the_head_bodies_are_fedbabus_bit_for_bit() -> None:
    oracle = TwoLayers()
    ours, theirs = (oracle.play_cohorts(method) for method in (FedRep(head_epochs=0), FedBABU()))
    assert torch.equal(ours.servers[-1].w, theirs.servers[-1].w)


def test_statistics_move_with_the_body_and_not_while_the_head_trains() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))

    engine = make_engine(normed, method=FedRep(head_epochs=2))
    method, trained = engine.method, engine.model.layout.trained
    server = method.open(engine.roster, engine.model)
    everyone = Cohort.everyone(engine.roster, engine.model, 0)
    task = by_steps(engine)
    down, private = method.send(server, everyone).take(task.silos), engine.private().take(task.silos)
    state = method.begin(task, down, private)
    start = engine.model.start(engine.seed)
    assert torch.equal(state.w[:, trained:], start[trained:].expand(3, -1))
    head, body = (engine.model.columns(part) for part in ("head", "body"))
    assert not torch.isclose(head.take(state.w), head.take(start)).any(0).all()
    assert torch.equal(body.take(state.w), body.take(start).expand(3, -1))
    after = task.run(method.step, state, "train").w
    assert torch.equal(head.take(after), head.take(state.w))
    assert not torch.isclose(after[:, trained:], state.w[:, trained:])[:, :6].any()


def test_a_newcomer_trains_its_head_on_the_representation() -> None:
    oracle = TwoLayers()
    server = oracle.play_cohorts(FedRep(head_epochs=1), COHORTS[:1]).servers[-1]
    newcomers = oracle.engine(FedRep(head_epochs=1))
    newcomers.host(server, 4)
    for i in range(3):
        w = np.where(oracle.body, oracle.vector(server.w), oracle.start())
        close(oracle.vector(newcomers.private().inner.w)[i], oracle.descend_on(oracle.head, i, w, 4, "personal"))
