"""FedBABU: bodies are trained and averaged under one random head, and fine-tuned where they are used."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import close
from two_layers import COHORTS, TwoLayers

from coterie.conformance import Ground, ground_of
from coterie.engine.method import Cohort, Method
from coterie.methods.fedbabu import FedBABU


@conform("fedbabu", {"tune": "body", "ft_epochs": 1, "robust": {"rule": "clipped"}})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(ground_of(method))


def body_of(oracle: TwoLayers, cohorts: tuple[list[int], ...]) -> np.ndarray:
    w = oracle.start()
    for r, ids in enumerate(cohorts):
        w = oracle.mean([oracle.descend_on(oracle.body, i, w, r) for i in ids], ids)
    return w


@pytest.mark.parametrize("tune", ["whole", "head", "body"])
def test_rounds_with_missing_silos_and_then_some_epochs_alone(tune: Literal["whole", "head", "body"]) -> None:
    oracle = TwoLayers()
    played = oracle.play_cohorts(FedBABU(tune=tune, ft_epochs=2))
    w = body_of(oracle, COHORTS)
    close(w[oracle.head], oracle.start()[oracle.head])
    close(oracle.vector(played.servers[-1].w)[oracle.body], w[oracle.body])
    close(oracle.vector(oracle.clouds(played)), np.stack([w] * 3))
    part = {"whole": oracle.body | oracle.head, "head": oracle.head, "body": oracle.body}[tune]
    close(
        oracle.vector(played.deployed()),
        np.stack([oracle.descend_on(part, i, w, 3, "finetune", 2) for i in range(3)]),
    )


def test_without_fine_tuning_everybody_has_one_model() -> None:
    oracle = TwoLayers()
    played = oracle.play_cohorts(FedBABU(ft_epochs=0))
    assert torch.equal(played.deployed(), oracle.clouds(played))


def test_neither_the_head_nor_anything_kept_crosses_or_moves() -> None:
    oracle = TwoLayers()
    played = oracle.play_cohorts(FedBABU())
    assert set(FedBABU().shared(oracle.model).names) == {"0.weight", "0.bias"}
    assert played.privates[-1].tensors() == {}


def test_a_newcomer_fine_tunes_the_body_like_everybody() -> None:
    oracle = TwoLayers()
    server = oracle.play_cohorts(FedBABU()).servers[-1]
    newcomers = oracle.engine(FedBABU(ft_epochs=1))
    down = newcomers.host(server, 3)
    models = newcomers.personal(Cohort.everyone(newcomers.roster, newcomers.model, 3), down).models  # type: ignore[attr-defined]
    w = body_of(oracle, COHORTS)
    everything = oracle.body | oracle.head
    close(oracle.vector(models), np.stack([oracle.descend_on(everything, i, w, 3, "finetune", 1) for i in range(3)]))
