"""Compression: of what a silo changed, only the largest numbers leave, or each number as one byte.

What did not leave waits on the silo and is added to its next change: error feedback, without which top-k does not
converge (Stich et al., "Sparsified SGD with Memory", NeurIPS 2018; Karimireddy et al., ICML 2019). Fields of an upload
are cut apart, so that a field of large numbers does not crowd another out. BatchNorm's statistics always leave whole.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engine.method import Cohort, Columns, Method, Model, Private, Roster, Task, Up
from coterie.engine.wrapper import Wrapper
from coterie.methods.wrappers.changes import REFUSAL, bases, changes, columns_of, shapes_of, with_changes
from coterie.options import option
from coterie.wire import described, rows

BLOCK = 256  # numbers that share a scale
LEVELS = 127


class SparseUp(Up):
    """The largest numbers of a silo's change."""

    values: Tensor = rows("the largest numbers of what training changed", "K", seen_by="as uncompressed")
    columns: Tensor = rows("which columns they are", "K", seen_by="as uncompressed", below="columns")


class BytesUp(Up):
    """A silo's change with a byte for each number."""

    codes: Tensor = rows(
        "what training changed, in steps of a scale", "columns", seen_by="as uncompressed", below="step"
    )
    scales: Tensor = rows("the scale of every 256 of them", "blocks", seen_by="as uncompressed")


class WithResidual(Private):
    """What the method inside keeps, and what has not left yet."""

    residual: Tensor | None = rows("what compression has left out so far", "columns", default=None)
    inner: Private


@dataclass(frozen=True)
class Compression:
    """`compress = {top_k = 0.05}` or `compress = {bits = 8}` in a method's table."""

    top_k: float | None = option(None, "share of the numbers of a change that leaves, the largest", above=0, high=1)
    bits: Literal[8] | None = option(None, "bits of each number that leaves")

    def __post_init__(self) -> None:
        if (self.top_k is None) == (self.bits is None):
            raise ValueError("give either top_k, e.g. 0.05, or bits = 8")


@dataclass(frozen=True, repr=False)
class WithCompression(Wrapper):
    """Any method whose silos send back what they were sent, changed, and nothing else."""

    summary = "of what a silo changed only the largest numbers leave, or each as a byte"
    private = WithResidual
    up = property(lambda self: BytesUp if self.options.top_k is None else SparseUp)

    method: Method
    options: Compression

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        inner = self.method.axes(roster, model)
        about = [each for each in described(self.method.up).values() if each.has_columns]
        sizes = [math.prod(inner[axis] for axis in each.axes) for each in about]
        columns = [columns_of(each, self.method, model) for each in about]
        return inner | {
            "K": sum(self._leaving(*both, model) for both in zip(sizes, columns, strict=True)),
            "columns": sum(sizes),
            "blocks": -(-sum(sizes) // BLOCK),
        }

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> WithResidual:
        nothing = torch.zeros(len(rows), self.axes(roster, model)["columns"], dtype=model.dtype, device=model.device)
        return WithResidual(residual=nothing, inner=self.method.enroll(roster, model, rows))

    def inside(self, task: Task, down: Any, private: WithResidual | None) -> tuple[Task, Any, Any]:
        return task, down, None if private is None else private.inner

    def end(self, task: Task, state: Any, down: Any, private: WithResidual) -> tuple[Any, WithResidual]:
        up, kept = super().end(task, state, down, private)
        packed, residual = self._packed(task.model, up, down, private.residual)
        return packed, WithResidual(residual=residual, inner=kept)

    def host(self, server: Any, newcomers: Cohort, up: Any | None) -> Any:
        if up is None:
            return self.method.host(server, newcomers, None)
        return self.method.host(server, newcomers, self.unpacked(self.method.host(server, newcomers, None), up))

    def adapt(self, task: Task, down: Any, private: WithResidual | None) -> tuple[Any | None, WithResidual]:
        up, kept = super().adapt(task, down, private)
        packed = None if up is None else self._packed(task.model, up, down, None)[0]
        return packed, WithResidual(inner=kept)

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if bases(self.method) is None:
            return f"compress: {REFUSAL}, so there is no change of a model to compress"
        return self.method.refusal(roster, model)

    def trace(self, server: Any, everyone: Cohort, private: WithResidual | None) -> Mapping[str, Tensor]:
        return self.method.trace(server, everyone, None if private is None else private.inner)

    # Packing, on the silo and on the server

    def _packed(self, model: Model, up: Any, down: Any, residual: Tensor | None) -> tuple[Any, Tensor]:
        """What leaves, and what waits: (k, columns)."""
        parts = [change.flatten(1) for change in changes(up, down, bases(self.method) or {}).values()]
        whole = torch.cat(parts, 1)
        whole = whole if residual is None else whole + residual
        packed = as_bytes(whole) if self.options.top_k is None else self._largest(model, whole, parts)
        return packed, whole - opened(packed, whole.shape[1], whole.dtype)

    def _largest(self, model: Model, whole: Tensor, parts: list[Tensor]) -> SparseUp:
        columns, first = list[Tensor](), 0
        for part, about in zip(parts, described(self.method.up).values(), strict=True):
            its = columns_of(about, self.method, model)
            size = whole[:, first : first + part.shape[1]].abs()
            size.reshape(len(size), -1, its.width)[..., its.trained :] = torch.inf  # statistics always leave
            columns.append(first + size.topk(self._leaving(part.shape[1], its, model), sorted=False).indices)
            first += part.shape[1]
        chosen = torch.cat(columns, 1).sort(1).values
        return SparseUp(values=whole.gather(1, chosen), columns=chosen.int())

    def _leaving(self, size: int, columns: Columns, model: Model) -> int:
        """How many numbers of a field of so many leave, which holds these columns of one or several models."""
        models = size // max(columns.width, 1)
        weights = models * sum(block.size for block in model.layout.parameters if block.name in columns.names)
        return math.ceil((self.options.top_k or 1) * weights) + models * (columns.width - columns.trained)

    def unpacked(self, down: Any, up: Any) -> Any:
        base = bases(self.method) or {}
        shapes = shapes_of(self.method, down, base)
        sizes = [math.prod(shape) for shape in shapes.values()]
        dtype = next(t.dtype for t in down.tensors().values() if t.is_floating_point())
        parts = opened(up, sum(sizes), dtype).split(sizes, 1)  # type: ignore[no-untyped-call]
        changed = {n: part.reshape(-1, *shape) for (n, shape), part in zip(shapes.items(), parts, strict=True)}
        return self.method.unpacked(down, self.method.up(**with_changes(changed, down, base)))


def as_bytes(whole: Tensor) -> BytesUp:
    """Each number as the nearest of 255 steps between minus and plus the largest of its block."""
    columns = whole.shape[1]
    blocks = F.pad(whole, (0, -columns % BLOCK)).reshape(len(whole), -1, BLOCK)
    scales = blocks.abs().amax(2) / LEVELS
    codes = torch.where(scales[..., None] > 0, blocks / scales[..., None], 0.0).round().to(torch.int8)
    return BytesUp(codes=codes.flatten(1)[:, :columns].contiguous(), scales=scales)


def opened(packed: Any, columns: int, dtype: torch.dtype) -> Tensor:
    """The change that was packed, as far as it left: (k, columns)."""
    if isinstance(packed, SparseUp):
        whole = torch.zeros(len(packed.values), columns, dtype=dtype, device=packed.values.device)
        # A column that does not exist would end the server; so it is another one.
        return whole.scatter(1, packed.columns.long() % columns, packed.values.to(dtype))
    scales: Tensor = packed.scales.to(dtype).repeat_interleave(BLOCK, 1)[:, :columns]
    codes: Tensor = packed.codes.to(dtype)
    return codes * scales
