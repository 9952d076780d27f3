"""Adapters: W stays, B A is trained beside it, and merged the model is the same."""

import pytest
import torch
from torch import nn

from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.models import build
from coterie.models.lora import LoRA, LoRALinear, adapted, add_lora, merge_lora
from coterie.models.parts import Blueprint, Parts

PICTURE = (3, 8, 8)
CNN = {"name": "cnn", "channels": [4, 6], "kernel": 3, "hidden": 5}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def filled(module: nn.Module) -> nn.Module:
    """With adapters that do something."""
    with torch.no_grad():
        for _, layer in adapted(module):
            layer.lora_B.weight.normal_()
    return module


def test_at_first_an_adapter_changes_nothing_and_it_alone_trains() -> None:
    plain = network()
    made = Blueprint(plain, Parts(lora=LoRA(rank=2, targets=("0", "2")), train=("head",)))()
    x = torch.randn(4, 5)
    assert torch.equal(made(x), plain(x))
    trained = {name for name, p in made.named_parameters() if p.requires_grad}
    assert trained == {
        "0.lora_A.weight", "0.lora_B.weight", "2.lora_A.weight", "2.lora_B.weight", "4.weight", "4.bias",
    }  # fmt: skip
    assert made.state_dict()["0.lora_A.weight"].shape == (2, 5)
    assert set(plain.state_dict()) <= set(made.state_dict())  # names are the module's own


def test_an_adapter_adds_its_product() -> None:
    layer = nn.Linear(5, 4).requires_grad_(False)
    w, b = layer.weight.clone(), layer.bias.clone()
    made = filled(add_lora(nn.Sequential(layer), LoRA(rank=3, alpha=6, targets=("0",))))[0]  # type: ignore[index]
    assert isinstance(made, LoRALinear)
    x = torch.randn(7, 5)
    expected = x @ (w + 6 / 3 * made.lora_B.weight @ made.lora_A.weight).T + b
    torch.testing.assert_close(made(x), expected)


@pytest.mark.parametrize("table", [CNN, {"name": "resnet18", "width": 8, "norm": "group"}])
def test_merged_the_model_is_the_same_and_has_the_plain_models_names(table: dict[str, object]) -> None:
    plain = build(table, PICTURE, 3)[0]()
    made = filled(build({**table, "lora": {"rank": 2, "alpha": 4.0}, "train": ["head"]}, PICTURE, 3)[0]()).eval()
    assert len(list(adapted(made))) > 1
    x = torch.randn(4, *PICTURE)
    before = made(x)
    merge_lora(made)
    torch.testing.assert_close(made(x), before, rtol=1e-4, atol=1e-4)
    assert [(n, t.shape) for n, t in made.state_dict().items()] == [(n, t.shape) for n, t in plain.state_dict().items()]
    assert [type(layer) for layer in made.modules()] == [type(layer) for layer in plain.modules()]


def test_rows_with_adapters_are_rewritten_and_hold_nothing_else() -> None:
    blueprint, table = build({**CNN, "lora": {"rank": 2, "targets": ["*"]}, "train": ["head"]}, PICTURE, 3)
    assert table["lora"] == {"rank": 2, "alpha": 16.0, "targets": ["*"]}
    model = Model(blueprint, 3)
    model.probe(torch.randn(4, *PICTURE))
    assert model.way == "rewritten"
    lora = model.columns("lora_A", "lora_B")
    assert model.width == lora.width + model.columns("head").width
    assert {name.split(".")[1] for name in lora.names} == {"lora_A", "lora_B"}
    assert not torch.equal(*(lora.take(model.start(0, key)) for key in "ab"))
    assert not model.columns("lora_B").take(model.start(0)).any()


def test_a_common_a_can_be_frozen() -> None:
    blueprint, _ = build({**CNN, "lora": {"rank": 2}, "freeze": ["lora_A"], "train": ["head"]}, PICTURE, 3)
    model = Model(blueprint, 3)
    names = {block.name for block in model.layout.parameters}
    assert names == {"0.lora_B.weight", "3.lora_B.weight", "7.lora_B.weight", "9.weight", "9.bias"}
    assert "0.lora_A.weight" in model.frozen


def test_a_common_a_beside_a_norm_that_stays() -> None:
    table = {"name": "resnet18", "width": 8, "lora": {"rank": 2}, "freeze": ["lora_A"], "train": ["head"]}
    assert not Model(build(table, PICTURE, 3)[0], 3).layout.buffers


def test_a_target_that_names_no_layer_is_refused() -> None:
    with pytest.raises(BadInput, match=r"\[model\] lora: no frozen layer is named 'quer'"):
        build({**CNN, "lora": {"rank": 2, "targets": ["quer"]}}, PICTURE, 3)[0]()
    with pytest.raises(BadInput, match=r"\[model\] lora: no layer is a frozen nn.Linear"):
        Blueprint(nn.GRU(2, 3), Parts(lora=LoRA()))()


def test_grouped_convolutions_have_none() -> None:
    module = build({"name": "mobilenet_v2", "width": 0.1, "lora": {"rank": 2}, "train": ["head"]}, PICTURE, 3)[0]()
    assert all(getattr(layer, "groups", 1) == 1 for _, layer in adapted(module))
