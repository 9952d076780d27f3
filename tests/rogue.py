"""A rogue silo, for tests: an engine whose silo of a given name uploads something else than it trained."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.engine.exchange import Replies
from coterie.engine.method import Cohort

Spoil = Callable[[Tensor, str, int], Tensor]  # a row, its field's name and the round


def not_a_number(row: Tensor, name: str, round: int) -> Tensor:
    return torch.full_like(row, torch.nan)


def huge(row: Tensor, name: str, round: int) -> Tensor:
    return torch.full_like(row, 1e30)


def shuffled(row: Tensor, name: str, round: int) -> Tensor:
    """The same numbers in another order: exactly as long as they were."""
    order = torch.from_numpy(np.random.default_rng((round, len(name))).permutation(row.numel()))
    return row.flatten()[order].reshape(row.shape)


def stale() -> Spoil:
    """What the silo sent in the first round, again and again."""
    first: dict[str, Tensor] = {}
    return lambda row, name, round: first.setdefault(name, row.clone())


class Rogue:
    """Any engine, one of whose silos spoils what it uploads."""

    def __init__(self, engine: Any, silo: str, spoil: Spoil) -> None:
        self.engine, self.silo, self.spoil = engine, silo, spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def train(self, cohort: Cohort, down: Any) -> Replies:
        replies = self.engine.train(cohort, down)
        names = [cohort.roster.names[i] for i in replies.cohort.ids.tolist()]
        if self.silo not in names:
            return replies
        at = names.index(self.silo)
        made = {}
        for name, value in replies.up.tensors().items():
            made[name] = value.clone()
            if value.is_floating_point():
                made[name][at] = self.spoil(value[at], name, cohort.round)
        return replace(replies, up=replies.up.with_tensors(made))
