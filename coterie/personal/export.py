"""Personal models as files: safetensors with named weights, which plain PyTorch loads."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from coterie.codec import save_tensors
from coterie.data.own.schema import Schema
from coterie.engine.rows import Model
from coterie.personal.base import without_base, write_base
from coterie.wire import Predictor

MIXTURE = "mixture"  # the weights of a mixture, beside its components


def modules(model: Model, predictor: Predictor, row: int) -> tuple[list[nn.Module], Tensor | None]:
    """One silo's model as modules of their own: one, or the components of a mixture and their weights."""
    models = predictor.models[row]
    if predictor.weights is None:
        return [model.module_of(models).cpu()], None
    return [model.module_of(each).cpu() for each in models], predictor.weights[row].cpu()


def model_tensors(model: Model, predictor: Predictor, row: int) -> dict[str, Tensor]:
    """One silo's model by the names of its module; a mixture's components are numbered, beside their `mixture`."""
    components, weights = modules(model, predictor, row)
    # Cloned, because a file holds no memory twice: tied weights are in it under both names.
    if weights is None:
        return {name: t.contiguous().clone() for name, t in components[0].state_dict().items()}
    named = {
        f"component{c}.{name}": t.contiguous().clone()
        for c, component in enumerate(components)
        for name, t in component.state_dict().items()
    }
    return named | {MIXTURE: weights.contiguous().clone()}


def save_models(
    folder: Path,
    model: Model,
    predictor: Predictor,
    silos: Sequence[str],
    about: Mapping[str, Any],
    schemas: Mapping[str, Schema] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    apart: bool = False,
) -> None:
    """Every silo's model into a folder, with what it takes to use it.

    `about` is known of all of them, `own` of each, and its schema says how rows are encoded. What is frozen is in each
    file, or `apart` from them: once, in the folder above.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if apart:
        write_base(model, folder.parent)
    taken = set[str]()
    for row, silo in enumerate(silos):
        name = file_name(silo)
        name = name if name not in taken else f"{name}-{row}"  # "a b" and "a_b" are one name for a file
        taken.add(name)
        known = {"silo": silo, **about, "classes": model.classes, **((own or {}).get(silo, {}))}
        known |= {"base": model.base_checksum} if model.base else {}
        tensors = model_tensors(model, predictor, row)
        if apart:
            tensors, lacking = without_base(tensors, model)
            known |= lacking
        if schemas:
            known["schema"] = schemas[silo].as_table()
        metadata = {key: value if isinstance(value, str) else json.dumps(value) for key, value in known.items()}
        path = folder / f"{name}.safetensors"
        save_tensors(tensors, path, metadata)
        path.chmod(folder.stat().st_mode & 0o666)  # safetensors makes a file that its owner alone can read


def file_name(silo: str) -> str:
    """A silo's name as the name of a file: nothing in it can leave the folder."""
    kept = "".join(c if c.isalnum() or c in "-_." else "_" for c in silo).lstrip(".")
    return kept.encode()[:100].decode(errors="ignore") or "silo"
