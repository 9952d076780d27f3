"""Weights from a file, to start from."""

import hashlib
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from coterie.errors import BadInput


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of tensors and their names; of none nothing."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest() if tensors else ""


def file_checksum(path: str) -> str:
    """The SHA-256 of a file of weights."""
    return _read(path)[1]


def load_weights(module: nn.Module, path: str, sha256: str | None, fresh: Collection[str]) -> None:
    """Fill a module from a .safetensors file; what is in `fresh` stays as it is where the file has another shape."""
    file, (given, found) = Path(path), _read(path)
    if sha256 is not None and found != sha256:
        raise BadInput(f"[model] weights {file}: its SHA-256 is {found}, expected {sha256}; bring that file")
    own = module.state_dict()
    # How many batches a BatchNorm has seen is no weight, and nothing depends on it.
    wanted = [name for name in own if not name.endswith("num_batches_tracked")]
    missing = [name for name in wanted if name not in given and name not in fresh]
    if missing:
        raise BadInput(f"[model] weights {file}: {len(missing)} tensors are missing, first {missing[0]}; give all")
    for name in wanted:
        if name in given and given[name].shape == own[name].shape:
            own[name].copy_(given[name])
        elif name not in fresh:
            shape, expected = tuple(given[name].shape), tuple(own[name].shape)
            raise BadInput(f"[model] weights {file}: {name} is {shape}, expected {expected}; give this model's")


def _read(path: str) -> tuple[dict[str, Tensor], str]:
    file = Path(path).expanduser()
    try:
        found = file.stat()
        return _content(file, (found.st_mtime_ns, found.st_size, found.st_ino))
    except (OSError, SafetensorError) as error:
        raise BadInput(f"[model] weights {file}: cannot be read ({error}); give a .safetensors file") from None


@lru_cache(1)  # a model is made many times
def _content(file: Path, version: tuple[int, ...]) -> tuple[dict[str, Tensor], str]:
    content = file.read_bytes()
    return load(content), hashlib.sha256(content).hexdigest()
