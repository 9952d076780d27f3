"""FedRoD: a generic model on the balanced softmax, and a personal head on top of it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import CLASSES, close
from plain import make_engine
from torch import nn
from two_layers import COHORTS, TwoLayers, lacking, softmax

from coterie.conformance import Ground, ground_of
from coterie.engine.method import Method
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedrod import FedRoD


@conform("fedrod", {"balanced": False}, {"compress": {"bits": 8}, "clip_update": {"norm": 0.5}})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(ground_of(method))


def trained(
    oracle: TwoLayers, i: int, w: np.ndarray, head: np.ndarray, r: int, purpose: str = "train", balanced: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Generic model and personal head after a silo's round; both gradients are of the same point.

    The losses are a public copy's balanced_softmax_loss, and that of its local_train_fedavg for the personal head.
    """
    x, y = oracle.data(i)
    with np.errstate(divide="ignore"):
        prior = np.log(np.bincount(y, minlength=CLASSES)) * (1.0 if balanced else 0.0) if balanced else 0.0
    for b in oracle.batches(i, r, purpose):
        g, z, one = oracle.logits(w, x[b]), oracle.features(w, x[b]), np.eye(CLASSES)[y[b]]
        p = head[: head.size - CLASSES].reshape(CLASSES, -1)
        own = (softmax(g + z @ p.T + head[-CLASSES:]) - one) / len(b)
        generic = (softmax(g + prior) - one) / len(b)
        w = w - oracle.training.lr * oracle.back(w, x[b], generic)
        head = head - oracle.training.lr * np.concatenate([(own.T @ z).ravel(), own.sum(0)])
    return w, head


def summed(oracle: TwoLayers, w: np.ndarray, head: np.ndarray) -> np.ndarray:
    return np.concatenate([w[oracle.body], w[oracle.head] + head])


@pytest.mark.parametrize("balanced", [True, False])
def test_rounds_with_missing_silos_one_of_which_lacks_a_class(balanced: bool) -> None:
    oracle = lacking()
    played = oracle.play_cohorts(FedRoD(balanced=balanced))
    w, heads = oracle.start(), np.zeros((3, oracle.head.sum()))
    deployed = np.stack([w] * 3)
    for r, ids in enumerate(COHORTS):
        copies = []
        for i in ids:
            copy, heads[i] = trained(oracle, i, w, heads[i], r, balanced=balanced)
            copies.append(copy)
            deployed[i] = summed(oracle, copy, heads[i])
        w = oracle.mean(copies, ids)
        close(oracle.vector(played.servers[r + 1].w), w)
    close(oracle.vector(played.deployed()), deployed)
    close(oracle.vector(oracle.clouds(played)), np.stack([w] * 3))


def test_on_the_plain_loss_the_generic_model_is_fedavgs() -> None:
    oracle = TwoLayers()
    ours, theirs = (oracle.play_cohorts(method) for method in (FedRoD(balanced=False), FedAvg()))
    close(ours.servers[-1].w, theirs.servers[-1].w)


def test_a_newcomer_trains_the_generic_model_and_a_head() -> None:
    oracle = lacking()
    server = oracle.play_cohorts(FedRoD()).servers[-1]
    newcomers = oracle.engine(FedRoD())
    newcomers.host(server, 4)
    for i in range(3):
        w, head = trained(oracle, i, oracle.vector(server.w), np.zeros(oracle.head.sum()), 4, "arrive")
        close(oracle.vector(newcomers.private().w)[i], summed(oracle, w, head))


def test_heads_that_cannot_be_summed_and_labels_that_are_numbers_are_refused() -> None:
    def convolved() -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 3, 1), nn.Flatten())

    engine = make_engine(convolved, method=FedRoD())
    assert "is not linear" in str(engine.method.refusal(engine.roster, engine.model))
    engine = make_engine(lambda: nn.Linear(5, 1), method=FedRoD(), classes=0, probe=False)
    assert "are numbers" in str(engine.method.refusal(engine.roster, engine.model))


def test_the_personal_head_stays() -> None:
    oracle = TwoLayers()
    played = oracle.play_cohorts(FedRoD())
    assert set(played.ups[0].tensors()) == {"w"}
    assert torch.equal(played.privates[0].head, torch.zeros(3, oracle.model.columns("head").width))
