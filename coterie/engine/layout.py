"""The columns of a row: where each parameter and buffer of a model lies in a flat vector."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

# Every layer starts at a multiple of 128 bytes, where the matrix kernels of a GPU want it. The columns between layers
# are zero in every row for ever, so no distance, cosine or mean changes.
ALIGNMENT = 32


@dataclass(frozen=True)
class Block:
    """Where one parameter or buffer lies in a row."""

    name: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True)
class Columns:
    """Some columns of a row: whole parameters, then whole buffers, in the row's own order."""

    names: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]  # where they lie in a row
    trained: int  # how many of them are parameters'

    @property
    def width(self) -> int:
        """How many columns."""
        return sum(end - start for start, end in self.spans)

    def take(self, rows: Tensor) -> Tensor:
        """These columns (..., s) of rows (..., d); a view where they lie side by side."""
        if len(self.spans) == 1:
            return rows[..., slice(*self.spans[0])]
        return torch.cat([rows[..., start:end] for start, end in self.spans] or [rows[..., :0]], -1)

    def put(self, rows: Tensor, part: Tensor) -> Tensor:
        """Rows (..., d) with these columns (..., s) in place of their own; one part may be for all rows."""
        made = rows.clone()
        widths = [end - start for start, end in self.spans]
        for (start, end), values in zip(self.spans, torch.split(part, widths, -1), strict=True):
            made[..., start:end] = values
        return made


def within(columns: Columns, axis: Columns) -> Columns:
    """Those of some columns that lie among others, by their places there."""
    spans, first = list[tuple[int, int]](), 0
    for start, end in axis.spans:
        for low, high in columns.spans:
            if max(start, low) < min(end, high):
                spans.append((first + max(start, low) - start, first + min(end, high) - start))
        first += end - start
    trained = sum(min(high, axis.trained) - min(low, axis.trained) for low, high in spans)
    return Columns(columns.names, tuple(spans), trained)


class Layout:
    """The columns of a row: parameters that train, then the buffers that training changes (BatchNorm's statistics)."""

    def __init__(self, module: nn.Module) -> None:
        held = _held(module)
        self.parameters = self._place({name: p for name, p in module.named_parameters() if p.requires_grad}, 0)
        self.trained = _end(self.parameters, 0)
        real = {name: b for name, b in module.named_buffers() if b.is_floating_point() and b.numel()}
        self.buffers = self._place({name: b for name, b in real.items() if id(b) not in held}, self.trained)
        self.width = _end(self.buffers, self.trained)

    @staticmethod
    def _place(tensors: Mapping[str, Tensor], start: int) -> tuple[Block, ...]:
        columns = []
        for name, tensor in tensors.items():
            columns.append(Block(name, tuple(tensor.shape), start, tensor.numel()))
            start += -(-tensor.numel() // ALIGNMENT) * ALIGNMENT
        return tuple(columns)

    @property
    def names(self) -> set[str]:
        """All that a row holds."""
        return {block.name for block in (*self.parameters, *self.buffers)}

    def weights(self, rows: Tensor) -> Tensor:
        """What is trained of rows (..., d): all but the buffers."""
        return rows[..., : self.trained]

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One row (d,) from named tensors."""
        first = next(iter(tensors.values()))
        row = torch.zeros(self.width, dtype=first.dtype, device=first.device)
        for column in (*self.parameters, *self.buffers):
            row[column.start : column.start + column.size] = tensors[column.name].detach().flatten()
        return row

    def views(self, rows: Tensor, columns: tuple[Block, ...]) -> dict[str, Tensor]:
        """Named views of some columns of rows (..., d): each of shape (..., *shape)."""
        if not columns:
            return {}
        first, last = columns[0].start, _end(columns, 0)
        starts = [column.start for column in columns] + [last]
        widths = [after - before for before, after in pairwise(starts)]
        parts = torch.split(rows[..., first:last], widths, dim=-1)
        return {
            c.name: part[..., : c.size].reshape((*rows.shape[:-1], *c.shape))
            for c, part in zip(columns, parts, strict=True)
        }

    def joined(
        self, rows: Tensor, columns: tuple[Block, ...], tensors: Mapping[str, Tensor | None], width: int = 0
    ) -> Tensor:
        """New columns (k, n) from named tensors (k, *shape), whole and of the rows' type; zeros where there is none.

        Up to a width there are zeros after them.
        """
        first, last = columns[0].start, _end(columns, 0)
        made = rows.new_empty(len(rows), width or last - first)
        ends = [column.start - first for column in columns[1:]] + [made.shape[1]]
        for column, end in zip(columns, ends, strict=True):
            place, tensor = column.start - first, tensors[column.name]
            # Written in the tensor's own shape, so that one in another order of memory is not first copied.
            part = made[:, place : place + column.size].view(len(rows), *column.shape)
            part.zero_() if tensor is None else part.copy_(tensor)
            if place + column.size < end:
                made[:, place + column.size : end] = 0
        return made

    def columns(self, names: Collection[str]) -> Columns:
        """The columns of some parameters and buffers."""
        known = [*self.parameters, *self.buffers]
        ends = [block.start for block in known[1:]] + [self.width]
        chosen = [(block, end) for block, end in zip(known, ends, strict=True) if block.name in names]
        spans: list[tuple[int, int]] = []
        for block, end in chosen:
            start = spans.pop()[0] if spans and spans[-1][1] == block.start else block.start
            spans.append((start, end))
        trained = sum(end - block.start for block, end in chosen if block.start < self.trained)
        return Columns(tuple(block.name for block, _ in chosen), tuple(spans), trained)

    def whole(self) -> Columns:
        """All columns of a row."""
        return self.columns(self.names)

    def dealt(self, count: int) -> list[Columns]:
        """All columns in so many parts: each has its share of the parameters and its share of the buffers."""
        found = []
        for place in range(count):
            bounds = [_share(0, self.trained, place, count), _share(self.trained, self.width, place, count)]
            trained = bounds[0][1] - bounds[0][0]
            found.append(Columns((), tuple(span for span in bounds if span[0] < span[1]), trained))
        return found

    def places(self, names: Collection[str]) -> Tensor:
        """Which columns (d,) are those of some parameters."""
        found = torch.zeros(self.width, dtype=torch.bool)
        for column in self.parameters:
            found[column.start : column.start + column.size] = column.name in names
        return found

    def named(self, rows: Tensor) -> dict[str, Tensor]:
        """Every parameter and buffer of rows (..., d) by name."""
        return self.views(rows, self.parameters) | self.views(rows, self.buffers)


class Slice(Layout):
    """The layout of rows that have some of the columns alone."""

    def __init__(self, whole: Layout, here: Columns) -> None:
        self._all, self.here = whole, here
        self.parameters, self.buffers = whole.parameters, whole.buffers
        self.trained, self.width = here.trained, here.width

    def columns(self, names: Collection[str]) -> Columns:
        return within(self._all.columns(names), self.here)


def cast(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The module on a device, its real numbers of a type; `Module.to` would take complex ones for real, too."""
    module._apply(lambda t: t.to(device, dtype) if t.is_floating_point() else t.to(device))  # type: ignore[no-untyped-call]
    return module


def _held(module: nn.Module) -> set[int]:
    """The statistics of layers that stay in evaluation mode when the module trains."""
    module.train()
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and not m.training]
    return {id(b) for norm in norms for b in norm.buffers()}


def _share(start: int, end: int, place: int, count: int) -> tuple[int, int]:
    """One of so many even parts of a span, which begins where a layer may."""
    each = -(-(end - start) // (count * ALIGNMENT)) * ALIGNMENT
    return min(start + place * each, end), min(start + (place + 1) * each, end)


def _end(columns: tuple[Block, ...], start: int) -> int:
    if not columns:
        return start
    return columns[-1].start + -(-columns[-1].size // ALIGNMENT) * ALIGNMENT
