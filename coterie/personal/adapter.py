"""A silo's adapter as PEFT reads it, and its model with the adapter merged into the weights."""

import json
import re
from dataclasses import fields
from pathlib import Path

from torch import nn

from coterie.codec import save_tensors
from coterie.errors import BadInput
from coterie.models.copied import copied
from coterie.models.lora import adapted, merge_lora
from coterie.models.parts import Parts
from coterie.personal.model import Deployed, PersonalModel
from coterie.wire import Mixed

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # PEFT's names
BEFORE = "base_model.model."  # what PEFT puts before a module's own names


def merged(module: Deployed) -> Deployed:
    """The same model without adapters."""
    made = copied(module)
    merge_lora(made.core)
    return made


def write_merged(model: PersonalModel, path: Path) -> None:
    """The model as a file of its own: its tensors are a plain module's, whatever of them trained."""
    if path.exists():
        raise BadInput(f"--safetensors {path}: exists already and is not overwritten; give another file or remove it")
    core = merged(model.module).core
    tensors = (_alone(core) or core).state_dict()
    trained = {f.name for f in fields(Parts)}
    table = {key: value for key, value in json.loads(model.about["model"]).items() if key not in trained}
    about = {key: value for key, value in model.about.items() if key != "base"} | {"model": json.dumps(table)}
    save_tensors(tensors, path, about)


def write_adapter(model: PersonalModel, folder: Path) -> None:
    """What was trained, into a folder in PEFT's format; the base is the user's own."""
    if folder.exists():
        raise BadInput(f"--adapter {folder}: exists already and is not overwritten; give another folder or remove it")
    module = _alone(model.module.core)
    if module is None:
        raise BadInput("--adapter: this is a mixture of several models, which is no adapter; take --safetensors")
    layers = dict(adapted(module))
    if not layers:
        raise BadInput("--adapter: this model has no adapters ([model] lora); take --safetensors")
    sizes = {(layer.lora_A.weight.shape[0], layer.scale) for layer in layers.values()}
    if len(sizes) > 1:
        raise BadInput("--adapter: its adapters are of several ranks, which this format has not; take --safetensors")
    ((rank, scale),) = sizes
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    whole = sorted({name.rpartition(".")[0] for name in names if ".lora_" not in name})
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": "|".join(re.escape(name) for name in layers),  # as one pattern: a list names more than these
        "modules_to_save": whole or None,
        "inference_mode": True,
    }
    state = module.state_dict()
    kept = [name for name in state if ".lora_" in name or name.rpartition(".")[0] in whole]
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    save_tensors({BEFORE + name: state[name] for name in kept}, folder / WEIGHTS, {"format": "pt"})


def _alone(core: nn.Module) -> nn.Module | None:
    """The one network of a predictor; None where it has several."""
    return core.components[0] if isinstance(core, Mixed) and len(core.components) == 1 else None
