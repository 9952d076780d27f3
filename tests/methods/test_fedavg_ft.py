"""FedAvg-FT: FedAvg's global model, fine-tuned on the silo's own data when it is used and never sent."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import Oracle, close

from coterie.conformance import Ground
from coterie.engine.method import Method
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedavg_ft import FedAvgFT


@conform("fedavg-ft", {"ft_epochs": 3})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


@pytest.mark.parametrize("ids", [None, [0, 2]])
@pytest.mark.parametrize("epochs", [1, 3])
def test_two_rounds_of_fedavg_and_then_some_epochs_alone(epochs: int, ids: list[int] | None) -> None:
    oracle = Oracle()
    played = oracle.play(FedAvgFT(ft_epochs=epochs), rounds=2, ids=ids)
    w, some = oracle.start(), ids or [0, 1, 2]
    for k in range(2):
        w = sum(oracle.sizes[i] * oracle.descend(i, w, k) for i in some) / oracle.sizes[some].sum()
    close(oracle.vector(played.servers[-1].w), w)
    tuned = [oracle.descend(i, w, 1, purpose="finetune", epochs=epochs) for i in range(3)]
    close(oracle.vector(played.deployed()), np.stack(tuned))


def test_the_federation_does_not_notice() -> None:
    oracle = Oracle()
    ours, theirs = oracle.play(FedAvgFT(ft_epochs=4), rounds=3), oracle.play(FedAvg(), rounds=3)
    for mine, its in zip(ours.ups, theirs.ups, strict=True):
        assert torch.equal(mine.w, its.w)
    before = ours.servers[-1].w.clone()
    ours.deployed()
    assert torch.equal(ours.servers[-1].w, before)
