"""A silo's model as ONNX, for where there is no PyTorch."""

import json
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch

from coterie.errors import BadInput
from coterie.personal.adapter import merged
from coterie.personal.model import PersonalModel


def write_onnx(model: PersonalModel, path: Path) -> None:
    """Write the file; batches of any size go in."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise BadInput(f"ONNX needs {' and '.join(missing)}: pip install 'coterie[onnx]'")
    if path.exists():
        raise BadInput(f"--onnx {path}: exists already and is not overwritten; give another file or remove it")
    kind = torch.int64 if model.about.get("input") == "int64" else torch.float32
    x = torch.zeros(2, *model.schema.shape, dtype=kind)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own, about itself
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            program = torch.onnx.export(
                merged(model.module), (x,), input_names=["x"], output_names=["prediction"],
                dynamic_shapes=({0: torch.export.Dim("samples")},), dynamo=True, verbose=False,
            )  # fmt: skip
    except Exception as error:  # whatever an exporter meets in a module of one's own
        raise BadInput(f"this model cannot be written as ONNX: {str(error).splitlines()[0]}") from None
    assert program is not None
    about = {"silo": model.silo, **{key: str(value) for key, value in model.about.items()}}
    program.model.metadata_props.update(about | {"schema": json.dumps(model.schema.as_table())})
    try:
        program.save(path, external_data=False)
    except OSError as error:
        raise BadInput(f"--onnx {path}: {error.strerror or error}; give a file that can be written") from None
