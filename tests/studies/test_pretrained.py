"""Studies that start from pretrained weights: every cell's model is made, with the parts that it names."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.models import build
from coterie.studies.study import cells, check, read, select

SAMPLES = {"pretrained": (torch.randn(4, 3, 8, 8), 10, 100), "adapters": (torch.randint(20, (4, 6)), 20, 20)}
CELLS = [(name, cell) for name in SAMPLES for cell in cells(read(name))]


@pytest.mark.parametrize(("name", "cell"), CELLS)
def test_a_cell_starts_from_the_weights_and_trains_its_parts(name: str, cell: str, tmp_path: Path) -> None:
    x, outputs, before = SAMPLES[name]
    study = check(select(read(name), cell, "small"))
    plain = {key: study.model[key] for key in study.model if key in ("name", "width", "heads", "layers", "norm")}
    pretrained = build(plain, x.shape[1:], before)[0]().state_dict()
    save_file(pretrained, tmp_path / "weights.safetensors")
    blueprint, _ = build({**study.model, "weights": str(tmp_path / "weights.safetensors")}, tuple(x.shape[1:]), outputs)
    model = Model(blueprint, outputs)
    model.probe(x)
    assert model.way == "rewritten"
    everything = sum(t.numel() for t in model.module.parameters())
    trained = sum(block.size for block in model.layout.parameters)
    assert trained == everything if cell == "everything" else trained < everything / 2
    assert (model.rest is not None) == (cell == "head")
    first = next(iter(pretrained))
    assert torch.equal(model.module_of(model.start(0)).state_dict()[first], pretrained[first])


def test_methods_for_adapters_run_where_there_are_any() -> None:
    named = {cell: {*check(select(read("adapters"), cell)).methods} for cell in cells(read("adapters"))}
    assert [cell for cell in named if {"fedsa-lora", "ffa-lora"} <= named[cell]] == ["lora"]
    assert named["lora-common-A"] == named["head"] == named["everything"]


def test_weights_that_are_not_there_are_missed_before_anything_trains(tmp_path: Path) -> None:
    table = check(select(read("adapters"), "lora", "small")).model
    with pytest.raises(BadInput, match=r"\[model\] weights .*cannot be read.*; give a \.safetensors file"):
        build({**table, "weights": str(tmp_path / "none.safetensors")}, (6,), 20)
