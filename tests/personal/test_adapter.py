"""A model with adapters leaves as one without, or as an adapter that PEFT reads."""

import json
from pathlib import Path

import pytest
import torch
from command import call
from safetensors.torch import load_file
from torch import nn

from coterie.engine.rows import Model
from coterie.models import build, code
from coterie.models.lora import LoRA, add_lora
from coterie.models.parts import Blueprint, Parts
from coterie.personal.adapter import CONFIG, WEIGHTS, write_adapter
from coterie.personal.export import save_models
from coterie.personal.file import load_model
from coterie.personal.model import PersonalModel
from coterie.wire import Predictor

Capture = pytest.CaptureFixture[str]
SHAPE, OUTPUTS = (2, 8, 8), 3
PLAIN = {"name": "cnn", "channels": [4, 6], "kernel": 3, "hidden": 5}
TABLE = {**PLAIN, "lora": {"rank": 2, "alpha": 4.0, "targets": ["*"]}, "train": ["head"]}


def saved(folder: Path, table: dict[str, object], components: int = 0) -> tuple[Path, Model]:
    """The file of a silo's model, whose weights are random."""
    blueprint, written = build(table, SHAPE, OUTPUTS)
    model = Model(blueprint, OUTPUTS)
    shape = (1, components) if components else (1,)
    rows = 0.1 * torch.randn(*shape, model.width, generator=torch.Generator().manual_seed(0))
    weights = torch.full((1, components), 1 / components) if components else None
    about = {"method": "fedavg", "model": written, "shape": list(SHAPE), "outputs": OUTPUTS}
    save_models(folder / "fedavg", model, Predictor(models=rows, weights=weights), ["north"], about, apart=True)
    return folder / "fedavg" / "north.safetensors", model


def predicted(model: PersonalModel) -> torch.Tensor:
    out: torch.Tensor = model.module(torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(1)))
    return out


@pytest.mark.parametrize("components", [0, 2])
def test_merged_it_is_a_plain_model_in_a_file_of_its_own(components: int, tmp_path: Path) -> None:
    file, _ = saved(tmp_path, TABLE, components)
    assert call("export", file, "--safetensors", tmp_path / "merged.safetensors") == 0
    merged = load_model(tmp_path / "merged.safetensors")
    torch.testing.assert_close(predicted(merged), predicted(load_model(file)), rtol=1e-5, atol=1e-6)
    assert json.loads(merged.about["model"]) == {**PLAIN, "padding": "same"}
    if not components:  # plain PyTorch reads it
        build(PLAIN, SHAPE, OUTPUTS)[0]().load_state_dict(load_file(tmp_path / "merged.safetensors"))


def test_onnx_has_no_adapters(tmp_path: Path) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    file, _ = saved(tmp_path, TABLE)
    load_model(file).to_onnx(tmp_path / "model.onnx")
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    assert sum(node.op_type in ("Conv", "Gemm", "MatMul") for node in nodes) == 4
    x = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    (out,) = runtime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), predicted(load_model(file)), rtol=1e-4, atol=1e-5)


def test_an_adapter_is_what_trained_under_pefts_names(tmp_path: Path) -> None:
    file, model = saved(tmp_path, TABLE)
    assert call("export", file, "--adapter", tmp_path / "adapter") == 0
    tensors = load_file(tmp_path / "adapter" / WEIGHTS)
    assert tensors.keys() == {f"base_model.model.{block.name}" for block in model.layout.parameters}
    config = json.loads((tmp_path / "adapter" / CONFIG).read_text("utf-8"))
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 4.0)
    assert config["modules_to_save"] == ["9"]


@pytest.mark.parametrize(
    ("table", "components", "option", "said"),
    [
        (TABLE, 2, "--adapter", "a mixture of several models, which is no adapter"),
        (PLAIN, 0, "--adapter", "this model has no adapters"),
        (PLAIN, 0, "", "nothing to write"),
    ],
)
def test_what_is_no_adapter_is_refused(
    table: dict[str, object],
    components: int,
    option: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, _ = saved(tmp_path, table, components)
    assert call("export", file, *([option, tmp_path / "there"] if option else [])) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "there").exists()


class Classifier(nn.Module):
    """Layers whose names end alike."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"query": nn.Linear(8, 8), "value": nn.Linear(8, 8)})
        self.query, self.score = nn.Linear(8, 8), nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.flatten(1)[:, :8]
        h = torch.tanh(self.query(torch.tanh(self.body["query"](h) + self.body["value"](h))))
        out: torch.Tensor = self.score(h)
        return out


def test_a_module_that_came_with_adapters_leaves_as_an_adapter(tmp_path: Path) -> None:
    net = add_lora(nn.Sequential(nn.Flatten(), nn.Linear(128, 6), nn.Linear(6, 3)).requires_grad_(False), LoRA(rank=4))
    model = Model(net, 3)
    about = {"model": {"name": "my:net"}, "shape": list(SHAPE), "outputs": OUTPUTS}
    save_models(tmp_path / "m" / "a", model, Predictor(models=model.start(0)[None]), ["north"], about, apart=True)
    write_adapter(load_model(tmp_path / "m" / "a" / "north.safetensors", net), tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / CONFIG).read_text("utf-8"))
    assert (config["r"], config["lora_alpha"], config["modules_to_save"]) == (4, 16.0, None)


@pytest.mark.parametrize("own", [False, True])
def test_peft_loads_the_adapter_and_predicts_the_same(own: bool, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base: nn.Module
    if own:
        parts = Parts(train=("score",), lora=LoRA(rank=3, targets=("query", "body.value")))
        model = Model(Blueprint(lambda: Classifier(SHAPE, OUTPUTS), parts), OUTPUTS)
        row = 0.1 * torch.randn(1, model.width, generator=torch.Generator().manual_seed(0))
        about = {"model": {"name": "my:Classifier", **parts.as_table()}, "shape": list(SHAPE), "outputs": OUTPUTS}
        save_models(tmp_path / "m" / "fedavg", model, Predictor(models=row), ["north"], about, apart=True)
        ours, base = load_model(tmp_path / "m" / "fedavg" / "north.safetensors", Classifier), Classifier(SHAPE, OUTPUTS)
    else:
        file, model = saved(tmp_path, TABLE)
        ours, base = load_model(file), build(PLAIN, SHAPE, OUTPUTS)[0]()
    base.load_state_dict(model.base, strict=False)
    write_adapter(ours, tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    x = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(theirs(x), ours.module.core.components[0](x), rtol=1e-5, atol=1e-5)


def test_peft_loads_the_adapter_of_a_transformer_and_predicts_the_same(tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    auto = transformers.AutoModelForSequenceClassification
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    made = auto.from_config(
        transformers.BertConfig(vocab_size=50, max_position_embeddings=20, num_labels=OUTPUTS, **size)
    )
    made.save_pretrained(tmp_path / "bert")
    make = code.factory(code.load_code(f"hf:{tmp_path / 'bert'}"), (8,), OUTPUTS)
    parts = Parts(train=("classifier",), lora=LoRA(rank=2, targets=("*.query", "*.value")))
    model = Model(Blueprint(make, parts), OUTPUTS)
    row = 0.1 * torch.randn(1, model.width, generator=torch.Generator().manual_seed(0))
    about = {"model": {"name": f"hf:{tmp_path / 'bert'}", **parts.as_table()}, "shape": [8], "outputs": OUTPUTS}
    save_models(tmp_path / "m" / "fedavg", model, Predictor(models=row), ["north"], about, apart=True)
    ours = load_model(tmp_path / "m" / "fedavg" / "north.safetensors", make)
    write_adapter(ours, tmp_path / "adapter")
    base = auto.from_pretrained(tmp_path / "bert", attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    tokens = torch.randint(1, 50, (4, 8), generator=torch.Generator().manual_seed(1))
    tokens[1, 5:] = 0
    with torch.no_grad():
        found = theirs(input_ids=tokens, attention_mask=tokens != 0).logits
        torch.testing.assert_close(found, ours.module.core.components[0](tokens), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found, made.eval()(tokens, attention_mask=tokens != 0).logits, atol=1e-3)
