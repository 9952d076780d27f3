"""The study of a folder of your own silos: what `coterie run --silos` runs where no study is given."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

OWN: dict[str, Any] = {
    "name": "own",
    "seeds": "auto",
    "data": {"name": "own"},
    "model": {"name": "auto"},
    "train": {
        "rounds": "auto",
        "local_epochs": 2,
        "round_samples": 50_000,
        "batch_size": 0,
        "optimizer": "auto",
        "lr": "auto",
        "weight_decay": "auto",
        "clip_gradient": 5.0,
        "whole_batches": True,
    },
    "methods": {
        name: {}
        for name in ("separate", "fedavg", "fedavg-ft", "ditto", "fedamp", "heurfedamp", "apple", "fedem", "stack")
    },
}


def on_folder(study: Mapping[str, Any] | None, folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """A study, or the default one, with a folder of own silos for its data."""
    table = dict(OWN if study is None else study)
    given = {key: value for key, value in options.items() if value is not None}
    if study is None:
        table["name"] = folder.resolve().name or "own"
    return table | {"data": {"name": "own", "path": str(folder), **given}}
