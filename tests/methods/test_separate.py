"""Separate training, and what must equal it."""

import numpy as np
import pytest
import torch
from oracle import NAMES, Oracle, close

from coterie.engine.method import Method
from coterie.methods.fedamp import FedAMP
from coterie.methods.heurfedamp import HeurFedAMP
from coterie.methods.separate import Separate


@pytest.mark.parametrize("common", [True, False])
def test_two_rounds_are_two_rounds_alone(common: bool) -> None:
    oracle = Oracle()
    played = oracle.play(Separate(common_init=common), rounds=2)
    for i, name in enumerate(NAMES):
        w = oracle.start() if common else oracle.start(name)
        for k in range(2):
            close(oracle.vector(played.privates[k].w)[i], w)
            w = oracle.descend(i, w, k)
        close(oracle.vector(played.privates[2].w)[i], w)


def test_who_is_absent_stays_as_it_was() -> None:
    oracle = Oracle()
    played = oracle.play(Separate(), rounds=2, ids=[0, 2])
    w = oracle.vector(played.privates[-1].w)
    close(w[1], oracle.start())
    close(w[2], oracle.descend(2, oracle.descend(2, oracle.start(), 0), 1))


def test_nothing_crosses_the_wire() -> None:
    played = Oracle().play(Separate(), rounds=1)
    assert played.downs[0].nbytes() == played.ups[0].nbytes() == 0


def test_a_newcomer_trains_alone_for_a_round() -> None:
    oracle = Oracle()
    newcomers = oracle.engine(Separate())
    newcomers.host(Separate().open(newcomers.roster, newcomers.model), 3)
    for i in range(3):
        close(oracle.vector(newcomers.private().w)[i], oracle.descend(i, oracle.start(), 3, purpose="arrive"))


@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize(
    "method",
    [
        FedAMP(tau=0.0, beta=np.inf),
        FedAMP(weights="step", alpha=0.0, sigma=1.0, beta=np.inf),
        HeurFedAMP(tau=0.0, beta=np.inf),
    ],
    ids=["fedamp-tau-0", "fedamp-alpha-0", "heurfedamp-tau-0"],
)
def test_message_passing_that_neither_attends_nor_pulls_is_separate_bit_for_bit(method: Method, common: bool) -> None:
    oracle = Oracle()
    passing = oracle.play(type(method)(**{**vars(method), "common_init": common}), rounds=3)
    alone = oracle.play(Separate(common_init=common), rounds=3)
    for ours, theirs in zip(passing.privates, alone.privates, strict=True):
        assert torch.equal(ours.w, theirs.w)
