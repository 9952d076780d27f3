"""The study of a folder of your own silos: what `coterie run --silos` runs where no study is given."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

OWN: dict[str, Any] = {
    "name": "own",
    "seeds": [0],
    "data": {"name": "own"},
    "model": {"name": "auto"},
    "train": {
        "rounds": 30,
        "local_epochs": 2,
        "batch_size": 16,
        "lr": 0.05,
        "clip_gradient": 5.0,
        "whole_batches": True,
    },
    "methods": {
        name: {} for name in ("separate", "fedavg", "fedavg-ft", "ditto", "fedamp", "heurfedamp", "apple", "fedem")
    },
}
# The gradient of a core model carries its weight in the mixture; a component sees a part of each sample.
RATES = {"apple": 0.25, "fedem": 0.15}  # by the method's registered name, whatever its label


def with_rates(study: Mapping[str, Any]) -> dict[str, Any]:
    """A study whose methods have the learning rates that suit them, where their tables do not say others."""
    methods = {label: _with_rate(label, table) for label, table in study["methods"].items()}
    return {**study, "methods": methods}


def _with_rate(label: str, table: Any) -> Any:
    rate = RATES.get(str(table.get("method", label))) if isinstance(table, Mapping) else None
    if rate is None or not isinstance(table.get("train", {}), Mapping):
        return table
    return {**table, "train": {"lr": rate, **table.get("train", {})}}


def on_folder(study: Mapping[str, Any] | None, folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """A study, or the default one, with a folder of own silos for its data."""
    table = dict(OWN if study is None else study)
    given = {key: value for key, value in options.items() if value is not None}
    if study is None:
        table["name"] = folder.resolve().name or "own"
    return table | {"data": {"name": "own", "path": str(folder), **given}}
