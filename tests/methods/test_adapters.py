"""FedSA-LoRA and FFA-LoRA: which matrices of low-rank adapters move, cross and stay."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from oracle import CLASSES, FEATURES, Oracle, close
from torch import Tensor, nn
from two_layers import COHORTS, TwoLayers, softmax

from coterie.conformance import CHECKS, Ground
from coterie.conformance import FEATURES as SUITE_FEATURES
from coterie.engine.method import Cohort, Method
from coterie.engine.rows import Model
from coterie.methods import make
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedavg_local import FedAvgLocal
from coterie.methods.fedsa_lora import FedSALoRA
from coterie.methods.ffa_lora import FFALoRA
from coterie.models.lora import LoRA
from coterie.models.parts import Blueprint, Parts

RANK, ALPHA = 2, 3.0


class Adapted(TwoLayers):
    """Vectors are A (2×4) and B (3×2); logits are W x + b + (α/r) B A x, with W and b frozen."""

    def __post_init__(self) -> None:
        Oracle.__post_init__(self)
        lora = LoRA(rank=RANK, alpha=ALPHA)
        make = Blueprint(lambda: nn.Linear(FEATURES, CLASSES), Parts(lora=lora))
        self.model = Model(make, CLASSES, dtype=torch.float64)
        frozen = self.model.frozen
        self.w, self.b = frozen["weight"].numpy(), frozen["bias"].numpy()

    def vector(self, row: Tensor) -> np.ndarray:
        named = self.model.layout.named(row)
        return torch.cat([named[f"lora_{m}.weight"].reshape(*row.shape[:-1], -1) for m in "AB"], -1).numpy()

    def grad(self, w: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        a, b = w[: RANK * FEATURES].reshape(RANK, FEATURES), w[RANK * FEATURES :].reshape(CLASSES, RANK)
        scale = ALPHA / RANK
        error = (softmax(x @ (self.w + scale * b @ a).T + self.b) - np.eye(CLASSES)[y]) / len(y)
        return scale * np.concatenate([(b.T @ error.T @ x).ravel(), (error.T @ x @ a.T).ravel()])


A = np.arange(RANK * (FEATURES + CLASSES)) < RANK * FEATURES


def test_fedsa_averages_a_and_each_silo_keeps_its_b() -> None:
    oracle = Adapted()
    played = oracle.play_cohorts(FedSALoRA())
    own, shared = np.stack([oracle.start()] * 3), oracle.start()
    for r, ids in enumerate(COHORTS):
        for i in ids:
            own[i] = oracle.descend(i, np.where(A, shared, own[i]), r)
        shared = oracle.mean(own[ids], ids)
        close(oracle.vector(played.servers[r + 1].w)[A], shared[A])
        assert (oracle.vector(played.servers[r + 1].w)[~A] == 0).all()
    close(oracle.vector(played.deployed()), own)
    close(oracle.vector(oracle.clouds(played)), np.where(A, shared, own))
    assert FedSALoRA().shared(oracle.model).names == ("lora_A.weight",)


def test_ffa_averages_b_under_one_a_that_stands_still() -> None:
    oracle = Adapted()
    played = oracle.play_cohorts(FFALoRA())
    w = oracle.start()
    for r, ids in enumerate(COHORTS):
        w = oracle.mean([oracle.descend_on(~A, i, w, r) for i in ids], ids)
        close(oracle.vector(played.servers[r + 1].w)[~A], w[~A])
    close(w[A], oracle.start()[A])
    close(oracle.vector(played.deployed()), np.stack([w] * 3))
    assert FFALoRA().shared(oracle.model).names == ("lora_B.weight",)
    assert played.privates[-1].tensors() == {}


def test_the_mean_of_ffas_products_is_the_product_of_its_mean() -> None:
    oracle = Adapted()
    played = oracle.play_cohorts(FFALoRA(), COHORTS[:1])
    up, columns = played.ups[0].w, FFALoRA().shared(oracle.model)
    matrices = [columns.put(oracle.model.start(oracle.seed), row) for row in up]
    products = [oracle.model.module_of(row).product() for row in matrices]  # type: ignore[operator]
    mean = sum(n * p for n, p in zip(oracle.sizes / oracle.sizes.sum(), products, strict=True))
    close(oracle.model.module_of(played.deployed()[0]).product(), mean)  # type: ignore[operator]


def test_ffa_is_fedavg_of_a_model_whose_a_is_frozen() -> None:
    oracle, by_hand = Adapted(), Adapted()
    started = oracle.model.module_of(oracle.model.start(oracle.seed))
    for name, parameter in started.named_parameters():
        parameter.requires_grad_(name == "lora_B.weight")
    by_hand.model = Model(started, CLASSES, dtype=torch.float64)
    ours, theirs = oracle.play_cohorts(FFALoRA()), by_hand.play_cohorts(FedAvg())
    for r, cohort in enumerate(COHORTS):
        for place in range(len(cohort)):
            assert torch.equal(ours.ups[r].w[place], theirs.ups[r].w[place])
    shared = FFALoRA().shared(oracle.model)
    assert torch.equal(shared.take(ours.deployed()), theirs.deployed())
    assert not torch.equal(theirs.deployed()[0], by_hand.model.start(oracle.seed))


@pytest.mark.parametrize(("ours", "theirs"), [(FedSALoRA(), FedAvgLocal()), (FFALoRA(), FedAvg())])
def test_a_model_without_adapters_is_averaged_bit_for_bit(ours: Method, theirs: Method) -> None:
    oracle = TwoLayers()
    one, other = (oracle.play_cohorts(method) for method in (ours, theirs))
    assert torch.equal(one.servers[-1].w, other.servers[-1].w)
    assert torch.equal(one.deployed(), other.deployed())


def test_newcomers_train_a_b_of_their_own_or_get_the_global_model() -> None:
    oracle = Adapted()
    server = oracle.play_cohorts(FedSALoRA()).servers[-1]
    newcomers = oracle.engine(FedSALoRA())
    newcomers.host(server, 4)
    for i in range(3):
        w = np.where(A, oracle.vector(server.w), oracle.start())
        w = oracle.descend_on(~A, i, w, 4, "personal")
        close(oracle.vector(newcomers.private().inner.w)[i], oracle.descend(i, w, 4, purpose="arrive"))
    server = oracle.play_cohorts(FFALoRA()).servers[-1]
    newcomers = oracle.engine(FFALoRA())
    down = newcomers.host(server, 4)
    models = newcomers.personal(Cohort.everyone(newcomers.roster, newcomers.model, 4), down).models  # type: ignore[attr-defined]
    close(oracle.vector(models)[:, ~A], np.stack([oracle.vector(server.w)[~A]] * 3))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(SUITE_FEATURES, 4), nn.Tanh(), nn.Linear(4, 3))


ADAPTED = Blueprint(small, Parts(lora=LoRA(rank=2), train=("head",)))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("table", [("fedsa-lora", {}), ("ffa-lora", {"compress": {"bits": 8}})], ids=lambda t: t[0])
def test_conformance(table: tuple[str, dict[str, object]], check: Callable[[Ground], None]) -> None:
    check(Ground(make(*table), ADAPTED))  # type: ignore[arg-type]
