"""Models as files: plain PyTorch reads them, and no name of a silo leads out of the folder."""

import os

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie.engine.predictors import Ensemble
from coterie.engine.rows import Model
from coterie.personal.export import file_name, model_tensors, save_models
from coterie.personal.file import load_model
from coterie.wire import Predictor

SILOS = ["north", "south"]


def network():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 36, 4))


@pytest.fixture
def model():
    return Model(network, classes=4)


def rows(model, *shape):
    return torch.rand(*shape, model.width, generator=torch.Generator().manual_seed(0))


def test_plain_pytorch_loads_a_model_with_its_statistics(model, tmp_path):
    models = rows(model, 2)
    save_models(tmp_path / "deep" / "fedamp", model, Predictor(models=models), SILOS, {"round": 3})
    x = torch.randn(5, 1, 8, 8)
    for row, silo in enumerate(SILOS):
        tensors = safetensors.torch.load_file(tmp_path / "deep" / "fedamp" / f"{silo}.safetensors")
        plain = network().eval()
        plain.load_state_dict(tensors)
        assert torch.equal(plain(x), model.module_of(models[row])(x))


def test_a_file_says_what_it_is(model, tmp_path):
    save_models(tmp_path, model, Predictor(models=rows(model, 2)), SILOS, {"method": "fedamp", "round": 3})
    with safetensors.safe_open(tmp_path / "south.safetensors", "pt") as file:
        assert file.metadata() == {"silo": "south", "method": "fedamp", "round": "3", "classes": "4"}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_who_may_read_a_file_is_whoever_may_read_its_folder(model, tmp_path, mask):
    before = os.umask(mask)
    try:
        save_models(tmp_path / "models", model, Predictor(models=rows(model, 2)), SILOS, {})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "models").iterdir()} == {0o666 & ~mask}


def test_a_mixture_is_its_components_and_their_weights(model):
    models, weights = rows(model, 2, 3), torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    tensors = model_tensors(model, Predictor(models=models, weights=weights), row=0)
    names = network().state_dict().keys()
    assert tensors.keys() == {f"component{c}.{name}" for c in range(3) for name in names} | {"mixture"}
    assert torch.equal(tensors["mixture"], weights[0])
    for c in range(3):
        assert torch.equal(tensors[f"component{c}.3.bias"], model.layout.named(models[0, c])["3.bias"])


def test_weights_that_two_layers_share_are_in_the_file_under_both_names(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.there, self.back = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.back.weight = self.there.weight
            self.register_buffer("steps", torch.tensor(7))  # a buffer that no row holds

        def forward(self, x):
            return self.back(self.there(x))

    model = Model(Tied, classes=3)
    save_models(tmp_path, model, Predictor(models=rows(model, 1)), ["a"], {})
    plain = Tied()
    plain.load_state_dict(safetensors.torch.load_file(tmp_path / "a.safetensors"))
    x = torch.rand(2, 3)
    assert torch.equal(plain(x), model.module_of(rows(model, 1)[0])(x))


@given(st.text(max_size=300))
def test_any_name_of_a_silo_is_one_file_in_the_folder(tmp_path_factory, silo):
    name = file_name(silo)
    assert name and not set(name) & {"/", "\\", "\0"} and not name.startswith(".")
    (tmp_path_factory.getbasetemp() / f"{name}.safetensors").touch()  # the file system takes it


def test_a_name_keeps_what_it_can():
    assert file_name("Zürich-2_b.1") == "Zürich-2_b.1"
    assert file_name("../../etc/passwd") == "_.._etc_passwd"
    assert file_name("...") == file_name("") == "silo"
    assert len(file_name("漢" * 200).encode()) <= 100


def test_silos_whose_names_make_one_file_name_keep_their_models_apart(model, tmp_path):
    models = rows(model, 3)
    save_models(tmp_path, model, Predictor(models=models), ["a b", "a_b", "a/b"], {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a_b-1.safetensors", "a_b-2.safetensors", "a_b.safetensors"]
    for path in tmp_path.iterdir():
        with safetensors.safe_open(path, "pt") as file:
            row = ["a b", "a_b", "a/b"].index(file.metadata()["silo"])
            assert torch.equal(file.get_tensor("3.bias"), model.layout.named(models[row])["3.bias"])


def test_an_ensemble_is_one_file_that_loads_and_predicts(tmp_path):
    model = Model(lambda: nn.Linear(2, 3), classes=3)
    alone, mixed = (
        Predictor(models=rows(model, 2)),
        Predictor(models=rows(model, 2, 2), weights=torch.full((2, 2), 0.5)),
    )
    both = Ensemble.of([alone, mixed], torch.tensor([[2.0, 1.0]] * 2), torch.tensor([[0.25, 0.75], [1.0, 0.0]]))
    about = {"model": {"name": "linear"}, "shape": [2], "outputs": 3}
    save_models(tmp_path, model, both, SILOS, about)
    x = torch.rand(5, 2)
    for row, silo in enumerate(SILOS):
        expected = both.take(slice(row, row + 1)).predict(model, x[None])[0]
        loaded = load_model(tmp_path / f"{silo}.safetensors", model=lambda shape, outputs: nn.Linear(2, 3))
        assert torch.allclose(torch.from_numpy(loaded.predict_proba(x)), expected, atol=1e-6)
