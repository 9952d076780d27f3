"""A server's step on coefficients in the place of weights: how much of each of n models (a cell) is in a row.

The server half of a method runs on a stand-in for the model, and shows by that what it does to models that nobody needs
to look at.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.engine.method import Columns, Model
from coterie.wire import Record, described

R = TypeVar("R", bound=Record)
# What a server raises that does more to models than add them up.
NOT_LINEAR = (RuntimeError, IndexError, AttributeError, NotImplementedError, TypeError, ValueError)


class Basis:
    """Stands in for a model at the server: a row (..., n) has the coefficients of n cells."""

    dtype = torch.float64
    sliced = False

    def __init__(self, width: int, sketches: Tensor, device: torch.device) -> None:
        self.width = self.trained = width
        self.sketches, self.device = sketches, device
        self.parameters = self.buffers = ()

    @property
    def layout(self) -> "Basis":
        """Of its columns."""
        return self

    def columns(self, *names: Any, empty: bool = False) -> Columns:
        """All columns, or none: a part of a model is no part of its coefficients."""
        whole = "*" in names or any("*" in each for each in names)
        return Columns(("*",), ((0, self.width),), self.width) if whole else Columns((), (), 0)

    def weights(self, rows: Tensor) -> Tensor:
        """The sketches of rows, which lie to each other as what is trained of them does."""
        return rows @ self.sketches


class Opening(Basis):
    """A basis before the first round: every random start that a server asks for becomes a cell."""

    def __init__(self, model: Model, cells: int) -> None:
        super().__init__(cells, torch.zeros(cells, 1, dtype=torch.float64), model.device)
        self.model, self.known = model, dict[tuple[object, ...], Tensor]()

    def start(self, seed: int, *key: object) -> Tensor:
        """The coefficients of a random start."""
        self.known.setdefault((seed, *key), self.model.start(seed, *key))
        row = torch.zeros(self.width, dtype=self.dtype, device=self.device)
        row[[*self.known].index((seed, *key))] = 1
        return row

    def starts(self, seed: int, names: tuple[str, ...], common: bool) -> Tensor:
        """Those of the silos' first models."""
        return torch.stack([self.start(seed) if common else self.start(seed, name) for name in names])


def with_coefficients(record: R, change: Callable[[Tensor], Tensor]) -> R:
    """A server's record with all its coefficients changed."""
    return record.change(lambda t, about: change(t) if about.has_columns else t)


def coefficients(record: Record) -> list[Tensor]:
    """All coefficients of a server's record, each (..., n)."""
    named = [getattr(record, name) for name, about in described(record).items() if about.has_columns]
    return [t for t in named if t is not None]
