"""A personal model's file, altered or made up: it predicts, or is refused."""

import json
from functools import cache
from typing import Any

import numpy as np
import safetensors.torch
import torch
from fuzzing import fuzz, scratch, survives
from hypothesis import example
from hypothesis import strategies as st
from mutate import bytes_like, names, numbers

from coterie.engine.rows import Model
from coterie.models import build
from coterie.personal.export import save_models
from coterie.personal.file import load_model
from coterie.wire import Predictor

ABOUT = {"method": "fedavg", "model": {"name": "mlp", "hidden": [3]}, "shape": [4], "outputs": 2, "round": 1}


@cache
def file(mixture: bool = False) -> bytes:
    model = Model(build(ABOUT["model"], (4,), 2)[0], 2)  # type: ignore[arg-type]
    rows = torch.zeros(1, 2, model.width) if mixture else torch.zeros(1, model.width)
    with scratch() as folder:
        save_models(
            folder, model, Predictor(models=rows, weights=torch.ones(1, 2) / 2 if mixture else None), ["a"], ABOUT
        )
        return (folder / "a.safetensors").read_bytes()


values = st.recursive(
    numbers | names | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
COLUMN = {"name": "a", "kind": "category", "levels": []}
schemas = st.fixed_dictionaries(
    {"shape": st.just([4]) | values, "columns": st.just([COLUMN] * 4) | values, "classes": st.just(["x", "y"]) | values}
)


@st.composite
def relabelled(draw: Any) -> bytes:
    """The valid weights with something else said of them."""
    told = {key: json.dumps(value) for key, value in (ABOUT | {"classes": 2}).items()} | {"silo": "a"}
    for key in draw(
        st.lists(st.sampled_from(["model", "shape", "outputs", "classes", "schema", "silo"]), min_size=1, max_size=2)
    ):
        told[key] = json.dumps(draw(schemas if key == "schema" else values)).encode(errors="replace").decode()
    return safetensors.torch.save(safetensors.torch.load(file()), told)


def relabelled_as(key: str, value: Any) -> bytes:
    told = {key: json.dumps(value) for key, value in (ABOUT | {"classes": 2, key: value}).items()} | {"silo": "a"}
    return safetensors.torch.save(safetensors.torch.load(file()), told)


@fuzz(
    350,
    st.one_of(
        relabelled(),
        relabelled(),
        st.deferred(lambda: bytes_like(file(), front=300)),
        st.deferred(lambda: bytes_like(file(True), front=400)),
    ),
)
@example(b"")
@example(relabelled_as("classes", 3))
def test_a_model_file_predicts_or_is_refused(content: bytes) -> None:
    def use(path: Any) -> None:
        load_model(path).predict(np.zeros((2, 4), np.float32))

    with scratch() as folder:
        (folder / "m.safetensors").write_bytes(content)
        survives(lambda: use(folder / "m.safetensors"))


def test_a_whole_file_predicts() -> None:
    for mixture in (False, True):
        with scratch() as folder:
            (folder / "m.safetensors").write_bytes(file(mixture))
            assert len(load_model(folder / "m.safetensors").predict(np.zeros((2, 4), np.float32))) == 2
