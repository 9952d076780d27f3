"""What models are worth is what a module per client gives."""

import pytest
import torch
from plain import CLASSES, by_steps, client, close, data, make_engine, make_silos
from torch import nn
from torch.nn import functional as F

from coterie.data.silo import Part, Silo
from coterie.engine import task as task_module
from coterie.engine.measuring import measure
from coterie.wire import Predictor


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


def test_targets_that_are_all_alike_have_no_r2() -> None:
    silos = [Silo(s.name, *(Part(p.x, 0 * p.x[:, 0]) for p in (s.train, s.validation, s.test))) for s in make_silos()]
    task = by_steps(make_engine(lambda: nn.Linear(5, 1), silos, classes=0))
    measured = measure(task, Predictor(models=task.start()), "test")
    assert measured["r2"].isnan().all() and measured["rmse"].isfinite().all()


def test_a_mixture_predicts_with_the_weighted_mean_of_probabilities() -> None:
    silos = make_silos()
    engine = make_engine(mlp, silos)
    task = by_steps(engine)
    models = torch.stack([engine.model.start(0, i) for i in range(6)]).reshape(3, 2, -1)
    weights = torch.tensor([[0.2, 0.8], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    measured = measure(task, Predictor(models=models, weights=weights), "test")
    for i, silo in enumerate(task.silos.tolist()):
        x, y = data(silos[silo], "test")
        told = [client(mlp, engine.model, models[i, j])(x).softmax(1) for j in range(2)]
        mixed = weights[i, 0] * told[0] + weights[i, 1] * told[1]
        close(measured["loss"][i], -mixed[torch.arange(len(y)), y].log().mean())
        close(measured["accuracy"][i], (mixed.argmax(1) == y).double().mean())


@pytest.mark.parametrize("at_once", [1, 7, 4096])
def test_measures_are_a_hand_computation_however_many_samples_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "SAMPLES_AT_ONCE", {"cpu": at_once})
    silos = make_silos(test=(9, 2, 5))
    engine = make_engine(batchnorm, silos)
    task = by_steps(engine)
    models = task.fit(task.start(common=False), "train")
    measured = measure(task, Predictor(models=models), "test")
    losses = task.losses(models, "test")
    for i, silo in enumerate(task.silos.tolist()):
        x, y = data(silos[silo], "test")
        out = client(batchnorm, engine.model, models[i]).eval()(x)
        close(measured["loss"][i], F.cross_entropy(out, y))
        close(measured["accuracy"][i], (out.argmax(1) == y).double().mean())
        close(losses[i, : len(y)], F.cross_entropy(out, y, reduction="none"))


def test_a_silo_without_samples_of_a_split_measures_nan() -> None:
    engine = make_engine(mlp, make_silos(validation=(3, 0, 2)))
    task = engine.task(torch.arange(3), 0)
    measured = measure(task, Predictor(models=task.start()), "validation")
    assert measured["loss"].isnan().tolist() == [False, True, False]
    assert measured["accuracy"].isnan().tolist() == [False, True, False]


def test_a_diverged_model_has_an_infinite_loss_not_a_missing_one() -> None:
    engine = make_engine(mlp, make_silos(test=(6, 2, 4)))
    task = engine.task(torch.arange(3), 0)
    models = task.start()
    models[1] = torch.nan
    losses = measure(task, Predictor(models=models), "test")["loss"]
    assert losses.isinf().tolist() == [False, True, False]
