"""The `coterie` command as tests call it, and a study small enough for them."""

import sys
from functools import cache
from pathlib import Path

import pytest
import safetensors.torch
import torch
import typer.main

from coterie.commands.main import main

built = cache(typer.main.get_command)  # the parser, which Typer would build anew for every call

SMALL = """
name = "small"
[data]
name = "digits"
silos = 6
groups = 3
sizes = [24, 18, 12]
test = 10
[model]
name = "mlp"
hidden = [16]
[train]
rounds = 2
local_epochs = 1
batch_size = 8
lr = 0.1
[engine]
rows = "all"
[methods.separate]
[methods.fedamp]
tau = 0.75
"""


def small(folder: Path, **replaced: str) -> str:
    """The small study as a file; `replaced` swaps words of it."""
    text = SMALL
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "small.toml"
    path.write_text(text, "utf-8")
    return str(path)


def call(*words: object) -> int:
    """Run the command in this process; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["coterie", *map(str, words)])
        patch.setattr("typer.main.get_command", built)
        try:
            main()
        except SystemExit as end:
            assert isinstance(end.code, int)
            return end.code
    return 0


def same(one: Path, other: Path) -> None:
    """Two runs ended with the same bits."""
    models = sorted(str(path.relative_to(one)) for path in one.glob("models/*/*"))
    assert models and models == sorted(str(path.relative_to(other)) for path in other.glob("models/*/*"))
    kept = sorted(str(path.relative_to(one)) for path in one.glob("collaboration/*"))
    for name in ("results.parquet", "predictions.parquet", "study.toml", *kept):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    for name in models:  # the order of what a file says beside its tensors is safetensors' choice
        these, those = (safetensors.torch.load_file(folder / name) for folder in (one, other))
        assert these.keys() == those.keys() and all(torch.equal(these[key], those[key]) for key in these), name
