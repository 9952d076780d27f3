"""Models of other libraries, where these are installed."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.models import code
from coterie.models.lora import LoRA
from coterie.models.parts import Blueprint, Parts


def create_model(name: str, pretrained: bool, num_classes: int, in_chans: int) -> nn.Module:
    assert not pretrained
    return nn.Sequential(nn.Conv2d(in_chans, 4, 3), nn.Flatten(), nn.Linear(4 * 36, num_classes))


def test_a_model_of_timms_is_made_for_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = SimpleNamespace(create_model=create_model, list_models=lambda: ["resnet10t", "vit_tiny"])
    monkeypatch.setitem(sys.modules, "timm", timm)  # type: ignore[arg-type]
    blueprint = Blueprint(code.factory(code.load_code("timm:resnet10t"), (2, 8, 8), 3))
    model = Model(blueprint, 3)
    model.probe(torch.randn(4, 2, 8, 8))
    assert model.output == (3,)
    with pytest.raises(BadInput, match="timm has no such model; did you mean 'resnet10t'"):
        code.load_code("timm:resnet10")


@pytest.mark.parametrize(("path", "package"), [("timm:resnet18", "timm"), ("hf:folder", "transformers")])
def test_what_is_missing_is_named(path: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadInput, match=rf"needs {package}; pip install 'coterie\[{package}\]'"):
        code.load_code(path)


def test_a_classifier_of_transformers_takes_tokens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=20, **size)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "bert")
    make = code.factory(code.load_code(f"hf:{tmp_path / 'bert'}"), (8,), 3)
    adapters = Parts(train=("classifier",), lora=LoRA(rank=2, targets=("*.query", "*.value")))
    model = Model(Blueprint(make, adapters), 3)
    tokens = torch.randint(1, 50, (6, 8), generator=torch.Generator().manual_seed(0))
    model.probe(tokens)
    assert model.way == "vmap" and model.head == "classifier"
    assert not [name for name in model.layout.names if ".lora_" not in name and not name.startswith("classifier")]
    short = torch.cat([tokens[:, :4], torch.zeros(6, 4, dtype=torch.int64)], 1)
    module = model.module_of(model.start(0))
    torch.testing.assert_close(module(short), module(tokens[:, :4]), rtol=1e-4, atol=1e-4)  # padding counts for nothing
    with pytest.raises(BadInput, match="no such folder"):
        code.load_code("hf:nowhere")
