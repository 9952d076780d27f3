"""Predictors of every kind: over k rows, as one silo's module, and read back from what was written."""

import pytest
import torch
from torch import nn

from coterie.engine.predictors import Ensemble, kind_of, read, restored
from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.wire import Deployable, Predictor, assembled

K = 3


def network():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def model_of(classes: int = 3) -> Model:
    return Model(network, classes, dtype=torch.float64)


def random(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def predictors(model: Model) -> list[Deployable]:
    one = Predictor(models=random(K, model.width) - 0.5)
    mixture = Predictor(models=random(K, 2, model.width) - 0.5, weights=torch.tensor([[0.3, 0.7]] * K).double())
    temperatures, weights = 0.5 + 2 * random(K, 2), random(K, 2)
    both = Ensemble.of([one, mixture], temperatures, weights / weights.sum(1, keepdim=True))
    return [one, mixture, both]


@pytest.mark.parametrize("classes", [3, 0])
@pytest.mark.parametrize("which", range(3))
def test_a_silos_module_and_the_one_read_back_give_what_its_row_gives(which, classes):
    model = model_of(classes)
    predictor, x = predictors(model)[which], random(K, 6, 4)
    whole = predictor.predict(model, x)
    for row in range(K):
        close(predictor.module(model, row)(x[row]), whole[row])
        written = predictor.written(model, row)

        def build(tensors):
            made = network().double()
            made.load_state_dict(tensors)
            return made

        close(read(predictor.form, dict(written), build, classes)(x[row]), whole[row])


def test_an_ensemble_mixes_its_candidates_probabilities_after_tempering_each():
    model = model_of()
    one, mixture, both = predictors(model)
    x = random(K, 6, 4)
    expected = 0
    for c, part in enumerate((one, mixture)):
        p = part.predict(model, x) ** (1 / both.temperatures[:, c, None, None])
        expected += both.weights[:, c, None, None] * p / p.sum(2, keepdim=True)
    close(both.predict(model, x), expected)


@pytest.mark.parametrize("which", range(3))
def test_a_predictor_comes_back_from_its_form_and_tensors_and_row_by_row(which):
    model = model_of()
    predictor, x = predictors(model)[which], random(K, 6, 4)
    again = restored(predictor.form, predictor.tensors())
    assert type(again) is type(predictor) and again.count == K
    assert torch.equal(again.predict(model, x), predictor.predict(model, x))
    order = [torch.tensor([2]), torch.tensor([0, 1])]
    apart = assembled([predictor.take(places) for places in order], order)
    close(apart.predict(model, x), predictor.predict(model, x))


@pytest.mark.parametrize("form", ["no such", [], ["ensemble", "no such"], 3, None, [["model"]]])
def test_a_form_that_no_kind_has_is_refused(form):
    with pytest.raises(BadInput, match="unknown kind of predictor"):
        read(form, {}, lambda tensors: network(), 3)


def test_an_ensemble_without_its_weights_is_refused():
    model = model_of()
    both = predictors(model)[2]
    written = both.written(model, 0)
    del written["weights"]
    with pytest.raises(BadInput, match="weights"):
        read(both.form, written, lambda tensors: network(), 3)
    assert kind_of(both.form) is Ensemble


def close(a, b):
    assert torch.allclose(a, b, atol=1e-12, rtol=0), float((a - b).abs().max())
