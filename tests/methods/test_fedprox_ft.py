"""FedProx-FT: FedProx's global model, fine-tuned without the pull."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import Oracle, close

from coterie.conformance import Ground
from coterie.engine.method import Method
from coterie.methods.fedavg_ft import FedAvgFT
from coterie.methods.fedprox_ft import FedProxFT


@conform("fedprox-ft", {"mu": 2.0, "ft_epochs": 2})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


@pytest.mark.parametrize("ids", [None, [0, 2]])
def test_two_rounds_of_fedprox_and_then_some_epochs_alone(ids: list[int] | None) -> None:
    oracle, mu = Oracle(), 0.9
    played = oracle.play(FedProxFT(mu=mu, ft_epochs=2), rounds=2, ids=ids)
    w, some = oracle.start(), ids or [0, 1, 2]
    for k in range(2):
        trained = [oracle.descend(i, w, k, mu, w) for i in some]
        w = oracle.sizes[some] @ np.stack(trained) / oracle.sizes[some].sum()
    close(oracle.vector(played.servers[-1].w), w)
    tuned = [oracle.descend(i, w, 1, purpose="finetune", epochs=2) for i in range(3)]
    close(oracle.vector(played.deployed()), np.stack(tuned))


def test_without_a_pull_it_is_fedavg_ft_bit_for_bit() -> None:
    oracle = Oracle()
    ours = oracle.play(FedProxFT(mu=0.0, ft_epochs=2), rounds=2)
    theirs = oracle.play(FedAvgFT(ft_epochs=2), rounds=2)
    assert torch.equal(ours.servers[-1].w, theirs.servers[-1].w)
    assert torch.equal(ours.deployed(), theirs.deployed())
