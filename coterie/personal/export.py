"""Personal models as files: safetensors with named weights, which plain PyTorch loads."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.codec import save_tensors, storable
from coterie.data.own.schema import Schema
from coterie.data.silo import Array
from coterie.engine import ranks
from coterie.engine.predictors import Incumbent
from coterie.engine.rows import Model
from coterie.models.foreign import tokenizer_of
from coterie.personal.base import without_base, write_base
from coterie.wire import Deployable, Predictor


def model_tensors(model: Model, predictor: Deployable, row: int) -> dict[str, Tensor]:
    """One silo's model by the names in its file."""
    return storable(predictor.written(model, row))  # tied weights are in it under both names


def save_models(
    folder: Path,
    model: Model,
    predictor: Deployable,
    silos: Sequence[str],
    about: Mapping[str, Any],
    schemas: Mapping[str, Schema] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    apart: bool = False,
    trees: Mapping[str, Mapping[str, Array] | None] | None = None,
    among: Sequence[str] | None = None,
) -> None:
    """Every silo's model into a folder, with what it takes to use it.

    `about` is known of all of them, `own` of each, and its schema says how rows are encoded. What is frozen is in each
    file, or `apart` from them: once, in the folder above. `trees` are models that silos have of their own, written
    where a predictor mixes them in. `among` are all silos whose models come to lie there, where others write theirs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    form = {} if predictor.form == Predictor.kind else {"kind": json.dumps(predictor.form)}
    if apart and ranks.rank() == 0:
        write_base(model, folder.parent)
    names, table = file_names(silos if among is None else among), about.get("model")
    tokenizer = tokenizer_of(table.get("name")) if isinstance(table, Mapping) else {}
    for row, silo in enumerate(silos):
        known = {"silo": silo, **about, **form, "classes": model.classes, **((own or {}).get(silo, {}))}
        known |= ({"base": model.base_checksum} if model.base else {}) | tokenizer
        tensors = model_tensors(model, predictor, row)
        if apart:
            tensors, lacking = without_base(tensors, model)
            known |= lacking
        if schemas:
            known["schema"] = schemas[silo].as_table()
        metadata = {key: value if isinstance(value, str) else json.dumps(value) for key, value in known.items()}
        path = folder / f"{names[silo]}.safetensors"
        save_tensors(tensors | _trees(predictor, (trees or {}).get(silo)), path, metadata)
        path.chmod(folder.stat().st_mode & 0o666)  # safetensors makes a file that its owner alone can read


def _trees(predictor: Deployable, trees: Mapping[str, Array] | None) -> dict[str, Tensor]:
    if trees is None or Incumbent.kind not in predictor.form[1:]:
        return {}
    place = predictor.form.index(Incumbent.kind) - 1
    return {f"candidate{place}.trees.{name}": torch.from_numpy(array) for name, array in trees.items()}


def file_names(silos: Sequence[str]) -> dict[str, str]:
    """Silos' names as the names of files in one folder."""
    made, taken = dict[str, str](), set[str]()
    for row, silo in enumerate(silos):
        name = file_name(silo)
        made[silo] = name if name not in taken else f"{name}-{row}"  # "a b" and "a_b" are one name for a file
        taken.add(made[silo])
    return made


def file_name(silo: str) -> str:
    """A silo's name as the name of a file: nothing in it can leave the folder."""
    kept = "".join(c if c.isalnum() or c in "-_." else "_" for c in silo).lstrip(".")
    return kept.encode()[:100].decode(errors="ignore") or "silo"
