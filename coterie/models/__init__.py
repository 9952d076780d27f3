"""The models a study can name: each a function of its options, the shape of a sample and the number of outputs."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn

from coterie.errors import BadInput, first_line, nearest, shown
from coterie.models.char_lstm import CharLSTM, char_lstm
from coterie.models.cnn import CNN, CNNApple, CNNEm, cnn
from coterie.models.linear import MLP, Linear, linear, mlp
from coterie.models.mobilenet import MobileNet, mobilenet_v2
from coterie.models.parts import Blueprint, Parts
from coterie.models.resnet import ResNet, resnet18
from coterie.models.transformer import Transformer, transformer
from coterie.options import parse, resolved
from coterie.registry import Registry

LARGEST = 1 << 30  # weights of one model: 4 GB


class Architecture(NamedTuple):
    """A model that has a name: a frozen dataclass of its options, and what makes it."""

    options: type
    build: Callable[[Any, tuple[int, ...], int], nn.Module]  # from options, the shape of a sample, how many outputs


MODELS: Registry[Architecture] = Registry(
    "model",
    "coterie.models",
    {
        "linear": Architecture(Linear, linear),
        "mlp": Architecture(MLP, mlp),
        "cnn": Architecture(CNN, cnn),
        "cnn-em": Architecture(CNNEm, cnn),
        "cnn-apple": Architecture(CNNApple, cnn),
        "resnet18": Architecture(ResNet, resnet18),
        "mobilenet_v2": Architecture(MobileNet, mobilenet_v2),
        "char-lstm": Architecture(CharLSTM, char_lstm),
        "transformer": Architecture(Transformer, transformer),
    },
    lambda thing: isinstance(thing, Architecture),
    "a coterie.models.Architecture",
)


AUTO = "auto"  # the model that suits the data
ENOUGH = 60  # training samples of a silo, for a hidden layer


def choose(shape: tuple[int, ...], samples: float) -> dict[str, Any]:
    """The `[model]` table that suits samples of a shape, of which a silo has so many to train on."""
    if len(shape) == 3 and min(shape[1:]) >= 8:
        return {"name": "cnn", "channels": [16, 32], "hidden": 64}
    # Where columns outnumber rows a line already fits them all, and a hidden layer fits their noise.
    return {"name": "mlp", "hidden": [32]} if samples >= max(ENOUGH, prod(shape)) else {"name": "linear"}


def build(
    table: Mapping[str, Any], shape: tuple[int, ...], outputs: int, samples: float = 0
) -> tuple[Blueprint, dict[str, Any]]:
    """What makes the model of a `[model]` table, and the table with every default written back.

    `auto` stays as it is where there are no data yet, and so no shape.
    """
    options, parts = split_parts(table)
    name = options.pop("name", "mlp")
    if name == AUTO:
        for key in {**options, **parts.as_table()}:
            raise BadInput(f'[model] {key}: name = "auto" chooses all by itself; name the model, or remove it')
        if shape:
            return build(choose(shape, samples), shape, outputs)
        return Blueprint(nn.Identity), {"name": AUTO}
    if not isinstance(name, str) or name not in MODELS:
        raise BadInput(f"[model] name: unknown model {shown(name)}; {nearest(str(name), [*MODELS, AUTO])}")
    schema, builder = MODELS[name]
    made: Any = parse(schema, options, f"[model] ({name})")
    if outputs:
        _check_size(lambda: builder(made, shape, outputs), name)
        parts = parts.with_checksum()
    blueprint = Blueprint(lambda: builder(made, shape, outputs), parts)
    return blueprint, {"name": name} | resolved(made) | parts.as_table()


def split_parts(table: Mapping[str, Any]) -> tuple[dict[str, Any], Parts]:
    """A `[model]` table without what it says of the model's parts, which any model may have, and that."""
    known = {f.name for f in fields(Parts)}
    own = {key: value for key, value in table.items() if key not in known}
    return own, parse(Parts, {key: value for key, value in table.items() if key in known}, "[model]")


def _check_size(factory: Callable[[], nn.Module], name: str) -> None:
    """Refuse a model that no memory would hold: it is built without its numbers first."""
    try:
        with torch.device("meta"):
            count = sum(t.numel() for t in factory().state_dict().values())
    except (RuntimeError, OverflowError, TypeError) as error:  # sizes that PyTorch cannot even count
        raise BadInput(f"[model] {name}: cannot be built ({first_line(error)}); make it smaller") from None
    if count > LARGEST:
        raise BadInput(f"[model] {name}: {count} weights, more than the limit of {LARGEST}; make it smaller")
