"""What is frozen in the models of a run, written once beside them."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from coterie.codec import save_tensors
from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.models.weights import checksum

FILE = "base.safetensors"  # in the folder above those of the methods
APART = "frozen_apart"  # of a model's file: before which names it lacks what is frozen, as JSON


def write_base(model: Model, folder: Path) -> None:
    """Write what is frozen into a folder of models, unless it is there."""
    if model.base and not (folder / FILE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(model.base, folder / FILE, {})
        (folder / FILE).chmod(folder.stat().st_mode & 0o666)


def without_base(tensors: Mapping[str, Tensor], model: Model) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A model's tensors, or a mixture's, less what is frozen; and what its file says of that."""
    if not model.base:
        return dict(tensors), {}
    before = _prefixes(tensors.keys(), list(model.module.state_dict()))
    frozen = {prefix + name for prefix in before for name in model.base}
    return {name: t for name, t in tensors.items() if name not in frozen}, {APART: json.dumps(before)}


def with_base(tensors: dict[str, Tensor], about: dict[str, str], file: Path) -> dict[str, Tensor]:
    """All tensors of a model, of whose file this was read; what is frozen lies in the folder above it."""
    if APART not in about:
        return tensors
    path = file.resolve().parent.parent / FILE
    try:
        base, before = load_file(path), json.loads(about.pop(APART))
        whole = {prefix + name: t for prefix in before for name, t in base.items()}
    except (OSError, SafetensorError, ValueError, TypeError):
        raise BadInput(f"{file}: what is frozen in it should be in {path}, which cannot be read; keep both") from None
    if checksum(base) != about.get("base"):
        raise BadInput(f"{file}: {path} is not the base that it was trained on; bring that back")
    return whole | tensors


def _prefixes(names: Collection[str], own: list[str]) -> list[str]:
    """What stands before a module's names, for each time that all of them are there."""
    ends = [name.removesuffix(own[0]) for name in names if name.endswith(own[0])]
    return [before for before in ends if all(before + name in names for name in own)]
