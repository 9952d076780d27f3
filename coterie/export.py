"""Personal models as files: safetensors with named weights, which plain PyTorch loads."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.codec import save_tensors
from coterie.engine.rows import Layout
from coterie.wire import Predictor


def model_tensors(layout: Layout, predictor: Predictor, row: int) -> dict[str, Tensor]:
    """One silo's model by the names of its module; a mixture's components are numbered, beside their `mixture`."""
    models = predictor.models[row].cpu()
    if predictor.weights is None:
        return {name: t.contiguous() for name, t in layout.named(models).items()}
    named = {
        f"component{c}.{name}": t.contiguous()
        for c, component in enumerate(models)
        for name, t in layout.named(component).items()
    }
    return named | {"mixture": predictor.weights[row].cpu().contiguous()}


def save_models(
    folder: Path, layout: Layout, predictor: Predictor, silos: Sequence[str], about: Mapping[str, Any]
) -> None:
    """Every silo's model into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = set[str]()
    for row, silo in enumerate(silos):
        name = file_name(silo)
        name = name if name not in taken else f"{name}-{row}"  # "a b" and "a_b" are one name for a file
        taken.add(name)
        metadata = {"silo": silo, **{key: v if isinstance(v, str) else json.dumps(v) for key, v in about.items()}}
        tensors = model_tensors(layout, predictor, row)
        save_tensors(tensors, folder / f"{name}.safetensors", metadata)


def file_name(silo: str) -> str:
    """A silo's name as the name of a file: nothing in it can leave the folder."""
    kept = "".join(c if c.isalnum() or c in "-_." else "_" for c in silo).lstrip(".")
    return kept.encode()[:100].decode(errors="ignore") or "silo"
