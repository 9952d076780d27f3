"""A silo's model as ONNX, for where there is no PyTorch."""

import json
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from coterie.data.own.incumbent import ANY, by_onnx
from coterie.data.own.schema import Schema
from coterie.engine.predictors import Beside, Ensembled
from coterie.errors import BadInput, first_line
from coterie.personal.adapter import merged
from coterie.personal.model import PersonalModel

if TYPE_CHECKING:
    import onnx

BESIDE, OWN = "beside", "today/"  # the second input; what names inside the silo's own graph begin with


def write_onnx(model: PersonalModel, path: Path) -> None:
    """Write the file; batches of any size go in."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise BadInput(f"ONNX needs {' and '.join(missing)}: pip install 'coterie[onnx]'")
    if path.exists():
        raise BadInput(f"--onnx {path}: exists already and is not overwritten; give another file or remove it")
    import onnx

    graph = _graph(model)
    if _asks_beside(model):
        graph = within(graph, Path(model.incumbent), model)
    known = {"silo": model.silo, **{key: str(value) for key, value in model.about.items()}}
    onnx.helper.set_model_props(graph, known | {"schema": json.dumps(model.schema.as_table())})
    try:
        path.write_bytes(graph.SerializeToString())
    except OSError as error:
        raise BadInput(f"--onnx {path}: {error.strerror or error}; give a file that can be written") from None


def _graph(model: PersonalModel) -> "onnx.ModelProto":
    """The model as a graph; where the silo's own is mixed in, what that gives is a second input."""
    kind = torch.int64 if model.about.get("input") == "int64" else torch.float32
    inputs = {"x": torch.zeros(2, *model.schema.shape, dtype=kind)}
    module: nn.Module = merged(model.module)
    if _asks_beside(model):
        if not str(model.incumbent or "").lower().endswith(".onnx"):
            raise BadInput("this model mixes in the silo's own, which is no ONNX file; give that as incumbent")
        module, inputs[BESIDE] = Within(module, model.schema), torch.ones(2, max(model.module.classes, 1))
    sizes = tuple({0: torch.export.Dim("samples")} for _ in inputs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own, about itself
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            program = torch.onnx.export(
                module, tuple(inputs.values()), input_names=list(inputs), output_names=["prediction"],
                dynamic_shapes=sizes, dynamo=True, verbose=False,
            )  # fmt: skip
    except Exception as error:  # whatever an exporter meets in a module of one's own
        raise BadInput(f"this model cannot be written as ONNX: {first_line(error.__cause__ or error)}") from None
    assert program is not None
    return program.model_proto


class Within(nn.Module):
    """A model with what the silo's own gives as that gives it: brought to what is mixed as `data/own/incumbent.py`."""

    def __init__(self, module: nn.Module, schema: Schema) -> None:
        super().__init__()
        self.module, self.classes, self.centre, self.unit = module, len(schema.classes), schema.centre, schema.unit

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        """The prediction."""
        if self.classes:
            beside = (1 - ANY) * given / given.sum(1, keepdim=True) + ANY / self.classes
        else:
            beside = (given - self.centre) / self.unit
        found: Tensor = self.module(x, beside)
        return found


def within(graph: "onnx.ModelProto", path: Path, model: PersonalModel) -> "onnx.ModelProto":
    """A graph with an ONNX file inside, which takes the same rows and gives the graph's second input."""
    import onnx
    from onnx import compose, version_converter

    sample = np.zeros((3, *model.schema.shape), np.float32)
    output, _ = by_onnx(path, sample, len(model.schema.classes))
    try:
        own = onnx.load(path)
        versions = {each.domain: each.version for each in graph.opset_import}
        if any(each.version != versions.get(each.domain, each.version) for each in own.opset_import):
            own = version_converter.convert_version(own, versions[""])
        own = compose.add_prefix(own, OWN)
        own.ir_version = graph.ir_version
        both = compose.merge_models(own, graph, io_map=[(f"{OWN}{output}", BESIDE)], outputs=["prediction"])
    except Exception as error:  # whatever the tools meet in a file of one's own
        raise BadInput(f"{path}: cannot be put into one graph ({first_line(error)[:200]})") from None
    first = own.graph.input[0].name
    for node in both.graph.node:
        node.input[:] = ["x" if name == first else name for name in node.input]
    kept = [each for each in both.graph.input if each.name != first]
    del both.graph.input[:]
    both.graph.input.extend(kept)
    return both


def _asks_beside(model: PersonalModel) -> bool:
    """Whether the silo's own model is mixed in, and not in the file."""
    core = model.module.core
    used = [core.parts[c] for c in core.used] if isinstance(core, Ensembled) else []
    return any(isinstance(part, Beside) and part.trees is None for part in used)
