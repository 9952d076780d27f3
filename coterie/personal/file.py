"""A model's file read back: nothing in it runs, and nothing is allocated that it does not hold."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from coterie.codec import save_tensors
from coterie.data.own.schema import Schema
from coterie.engine import predictors
from coterie.errors import BadInput, first_line
from coterie.models import build, code, split_parts
from coterie.models.parts import FROM_FILES, Blueprint
from coterie.personal.base import with_base
from coterie.personal.model import Deployed, PersonalModel
from coterie.wire import Predictor


def load_model(file: str | Path, model: Any = None, incumbent: Any = None) -> PersonalModel:
    """The model in a file that a run wrote; `model` makes the module where it was one's own code.

    `incumbent` is the silo's own model, where that is mixed in: an object, or the path of an ONNX file.
    """
    path = Path(file)
    about, own = _own(path)
    tensors = with_base(own, about, path)
    try:
        table, classes = json.loads(about["model"]), json.loads(about.get("classes", "0"))
        shape, outputs = tuple(json.loads(about["shape"])), json.loads(about["outputs"])
        schema = json.loads(about["schema"]) if "schema" in about else {"shape": shape}
        temperature = float(json.loads(about.get("temperature", "1")))
        form = json.loads(about.get("kind", f'"{Predictor.kind}"'))
        positive = json.loads(about.get("positive", "1"))
        # Before files had both, the threshold was for whoever read it.
        threshold = float(json.loads(about.get("threshold", "0.5"))) if "positive" in about else 0.5
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError):
        raise BadInput(f"{path}: does not say what model it is; give a file that `coterie run` wrote") from None
    whole = [*shape, outputs, classes]
    sound = isinstance(table, Mapping) and all(type(n) is int and 0 <= n < 2**31 for n in whole)
    sound = sound and type(positive) is int and positive in (0, 1) and 0 < threshold < 1
    if not sound or not 1e-3 < temperature < 1e3:
        raise BadInput(f"{path}: what it says of its model makes no sense; give a file that `coterie run` wrote")
    known = Schema.read(schema, f"{path} schema")
    if known.shape != shape or outputs < classes or (known.classes and len(known.classes) != classes):
        raise BadInput(f"{path}: its schema is not that of its model; give a file that `coterie run` wrote")
    build = partial(_module, table=table, shape=shape, outputs=outputs, by_code=model, path=path)
    try:
        core = predictors.read(form, tensors, build, classes)
    except (predictors.Unreadable, RecursionError) as error:
        raise BadInput(f"{path}: {error}") from None
    mixes = "incumbent" in about or any(isinstance(part, predictors.Beside) for part in core.modules())
    if incumbent is not None and not mixes:
        raise BadInput(f"{path}: mixes in none of the silo's own; leave the incumbent out")
    deployed = Deployed(core, known, classes, temperature)
    return PersonalModel(about.get("silo", ""), deployed, known, about, positive, threshold, incumbent)


def copy_whole(file: Path, to: Path) -> None:
    """Copy a model's file, with what is frozen in it."""
    about, own = _own(file)
    if (tensors := with_base(own, about, file)) is own:
        shutil.copyfile(file, to)
    else:
        save_tensors(tensors, to, about)


def about_of(file: Path) -> dict[str, str]:
    """What a model's file holds beside its weights."""
    with _opened(file) as opened:
        return {"silo": "", **(opened.metadata() or {})}


def _own(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with _opened(path) as file:
        return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, "pt") as file:
            yield file
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise BadInput(f"{path}: damaged or not a safetensors file ({error}); give a model that a run wrote") from None
    except OSError as error:
        if path.is_dir():
            raise BadInput(f"{path}: is a folder; give a model in it") from None
        raise BadInput(f"{path}: cannot be read ({error.strerror or error}); check the path") from None


def _module(
    tensors: dict[str, Tensor], table: Mapping[str, Any], shape: tuple[int, ...], outputs: int, by_code: Any, path: Path
) -> nn.Module:
    name = table.get("name")
    if code.is_code(name) and by_code is None:
        raise BadInput(f"{path}: is {name}, a model of your own; a file runs no code: give --model module:Class")
    try:
        table = {key: value for key, value in table.items() if key not in FROM_FILES}
        if by_code is not None:
            module = Blueprint(code.factory(by_code, shape, outputs), split_parts(table)[1])()
        else:
            with torch.device("meta"):  # takes no memory, whatever sizes the file claims
                module = build(table, shape, outputs)[0]()
        module.load_state_dict(tensors, assign=True)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"{path}: its weights are not those of its model ({first_line(error)})") from None
    return module
