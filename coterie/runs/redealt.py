"""A checkpoint that other processes wrote, as this one needs it: the rows of its silos, and its columns of the server.

Files are read where they are needed: nothing here ever holds a whole server or all silos' rows.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from coterie.engine.layout import Columns, within
from coterie.engine.simulate import Simulator
from coterie.wire import Record, every_field


class PartFiles:
    """The files of one checkpoint, in the order of the processes that wrote them."""

    def __init__(self, stack: ExitStack, paths: Sequence[Path], device: torch.device, silos: Sequence[str]) -> None:
        """`silos` are those of a file that does not name its own: all."""
        self._files: list[Any] = [stack.enter_context(safe_open(path, "pt", device=str(device))) for path in paths]
        self.abouts: list[dict[str, Any]] = [json.loads(file.metadata()["about"]) for file in self._files]
        self._row: dict[str, tuple[Any, int]] = {}
        for file, about in zip(self._files, self.abouts, strict=True):
            for row, silo in enumerate(about.get("names", silos)):
                self._row.setdefault(silo, (file, row))  # a silo that stands in for none comes after its own process

    def rows(self, name: str, silos: Sequence[str]) -> Tensor:
        """The rows of these silos; of one row for all of them, that."""
        found = []
        for silo in silos:
            file, row = self._row[silo]
            values = file.get_slice(name)
            row = row if values.get_shape()[0] > 1 else 0
            found.append(values[row : row + 1])
        return torch.cat(found)

    def columns(self, name: str, parts: Sequence[Columns], mine: Columns) -> Tensor:
        """These columns of something of which each file has a part."""
        made = Tensor()
        for file, part in zip(self._files, parts, strict=True):
            values = file.get_slice(name)
            lead = values.get_shape()[:-1]
            spans = zip(within(mine, part).spans, within(part, mine).spans, strict=True)
            for (low, high), (start, end) in spans:
                read = values[(*(slice(None) for _ in lead), slice(low, high))]
                made = made if made.ndim and made.shape[-1] else read.new_empty(*lead, mine.width)
                made[..., start:end] = read
        return made

    def one(self, name: str) -> Tensor:
        """What all have alike."""
        value: Tensor = self._files[0].get_tensor(name).clone()
        return value


def redealt(paths: Sequence[Path], server: Record, engine: Simulator) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The server's tensors and the silos', of this process."""
    with ExitStack() as stack:
        parts = PartFiles(stack, paths, engine.model.device, engine.roster.names)
        ours, about = dict[str, Tensor](), every_field(server)
        for name in server.tensors():
            before, now = engine.columns(about[name], len(paths)), engine.columns_here(about[name])
            key = f"server.{name}"
            ours[name] = parts.one(key) if before is None or now is None else parts.columns(key, before, now)
        private, about = engine.private(), every_field(engine.private())
        silos = {
            name: parts.rows(f"engine.{name}", engine.store.names)
            if about[name].kind == "rows"
            else parts.one(f"engine.{name}")
            for name in private.tensors()
        }
        return ours, silos


def models_of(paths: Sequence[Path], silos: Sequence[str], everyone: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of the models of some silos."""
    with ExitStack() as stack:
        parts = PartFiles(stack, paths, torch.device("cpu"), everyone)
        names: Mapping[str, Any] = dict.fromkeys(parts._files[0].keys())
        return {name: parts.rows(name, silos) for name in names}
