"""A study with a frozen base, from its folder to a silo that has another."""

import json
from pathlib import Path

import pytest
import torch
from command import call, small
from safetensors.torch import load_file

from coterie.errors import BadInput
from coterie.personal.base import FILE
from coterie.personal.file import load_model
from coterie.result import load_result

FROZEN = 'hidden = [16]\nfreeze = ["*"]\ntrain = ["head"]'


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    study = small(folder, **{"hidden = [16]": FROZEN, "[methods.separate]": "[methods.fedem]\ncomponents = 2"})
    assert call("run", study, "--out", folder / "out", "--quiet") == 0
    return folder / "out"


def test_models_hold_what_trained_and_the_base_is_beside_them_once(out: Path) -> None:
    base = load_file(out / "models" / FILE)
    assert base.keys() == {"1.weight", "1.bias"}
    assert load_file(out / "models" / "fedamp" / "silo-00.safetensors").keys() == {"3.weight", "3.bias"}
    mixture = load_file(out / "models" / "fedem" / "silo-00.safetensors").keys()
    assert mixture == {f"component{c}.3.{kind}" for c in (0, 1) for kind in ("weight", "bias")} | {"mixture"}


def test_a_model_is_whole_when_it_is_loaded_and_where_it_is_deployed(out: Path) -> None:
    base, x = load_file(out / "models" / FILE), torch.randn(3, 1, 8, 8)
    for method in ("fedamp", "fedem"):
        loaded = load_model(out / "models" / method / "silo-01.safetensors")
        for component in loaded.module.core.components:
            assert torch.equal(component.state_dict()["1.weight"], base["1.weight"])
    chosen = json.loads((out / "deploy" / "silo-01" / "card.json").read_text("utf-8"))["method"]
    deployed = load_model(out / "deploy" / "silo-01" / "model.safetensors")
    there = load_result(out)[chosen]["silo-01"]
    assert torch.equal(deployed.module(x), there.module(x))


def test_the_base_is_named_wherever_a_model_is(out: Path) -> None:
    base = json.loads((out / "summary.json").read_text("utf-8"))["base"]
    assert len(base) == 64
    card = out / "deploy" / "silo-01"
    assert json.loads((card / "card.json").read_text("utf-8"))["base"] == base
    assert base in (card / "card.md").read_text("utf-8")
    assert load_model(card / "model.safetensors").about["base"] == base


def test_bytes_on_the_wire_are_those_that_train(out: Path) -> None:
    fedamp = json.loads((out / "summary.json").read_text("utf-8"))["methods"]["fedamp"]
    columns = 160 + 32  # 10 × 16 weights, and 10 biases in 32 columns
    assert fedamp["bytes_up"] == columns * 4 * 6 * 2  # bytes, silos, rounds


def test_a_model_without_its_base_or_with_another_is_refused(out: Path, tmp_path: Path) -> None:
    alone = tmp_path / "models" / "fedamp" / "silo-00.safetensors"
    alone.parent.mkdir(parents=True)
    alone.write_bytes((out / "models" / "fedamp" / alone.name).read_bytes())
    with pytest.raises(BadInput, match=r"frozen in it should be in .*base\.safetensors"):
        load_model(alone)
    (tmp_path / "models" / FILE).write_bytes(alone.read_bytes())
    with pytest.raises(BadInput, match="not the base that it was trained on"):
        load_model(alone)


def test_a_saved_result_has_the_base(out: Path, tmp_path: Path) -> None:
    load_result(out)["fedamp"].save(tmp_path / "saved")
    x = torch.randn(2, 1, 8, 8)
    saved, here = (load_result(folder)["fedamp"]["silo-02"].module(x) for folder in (tmp_path / "saved", out))
    assert torch.equal(saved, here)
