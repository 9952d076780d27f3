"""The simulator over several processes: each has the data, rows and optimisers of its own silos and no others'."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.data.silo import Silo
from coterie.engine import ranks
from coterie.engine.exchange import CohortPart, Measures, Replies
from coterie.engine.method import Cohort, Method
from coterie.engine.over_processes import Deal, OverProcesses
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.task import Task
from coterie.wire import Deployable

T = TypeVar("T")


def simulator() -> type[Simulator]:
    """What simulates silos here: over several processes where they have met."""
    return Sharded if ranks.joined() else Simulator


def held_here(silos: Sequence[Silo]) -> list[Silo]:
    """Those of the silos that live in this process."""
    return [silos[i] for i in Deal.by_size([len(silo.train) for silo in silos]).here()] if ranks.joined() else [*silos]


class Sharded(Simulator):
    """A simulator of the silos of this process, which knows how many there are in all."""

    def __init__(self, method: Method, silos: Sequence[Silo], model: Model, *given: Any, **named: Any) -> None:
        ranks.check_device(model.device)
        self.deal = Deal.by_size([len(silo.train) for silo in silos])
        super().__init__(OverProcesses(method, self.deal, model), silos, model, *given, **named)

    def held(self, silos: Sequence[Silo]) -> list[int]:
        return self.deal.here()

    def here(self, cohort: Cohort) -> Cohort:
        """Those of a cohort that are in this process; where none is, the first silo of the process stands in."""
        mine = self.deal.places(cohort.ids)[self.deal.rank]
        ids = cohort.ids[mine] if len(mine) else cohort.ids.new_tensor(self.deal.here()[:1])
        return replace(cohort, ids=ids)

    def train(self, cohort: Cohort, down: Any) -> Replies:
        places = self.deal.places(cohort.ids)
        mine = places[self.deal.rank]
        worker = self if len(mine) else self._standing_in()
        replies = Simulator.train(worker, self.here(cohort), down)
        sizes = torch.tensor([replies.bytes_up, replies.bytes_down]) * bool(len(mine))
        up, sent = ranks.summed(sizes).tolist()
        share = CohortPart(mine, lambda values: ranks.gathered(values, places))
        return Replies(cohort, replies.up, bytes_up=up, bytes_down=sent, share=share)

    def settle(self, rejected: Tensor) -> None:
        super().settle(rejected[self.deal.places(rejected)[self.deal.rank]])

    @torch.no_grad()
    def measure(self, cohort: Cohort, down: Any, splits: tuple[str, ...], hold: tuple[int, ...] = ()) -> Measures:
        places = self.deal.places(cohort.ids)
        found = super().measure(self.here(cohort), down, splits)
        count = len(places[self.deal.rank])
        keys = dict.fromkeys((split, measure) for each in ranks.from_all(list(found.values)) for split, measure in each)
        none = np.full(len(found.cohort.ids), np.nan)
        values = {key: ranks.gathered(torch.from_numpy(found.values.get(key, none)), places).numpy() for key in keys}
        known = {key: value for key, value in values.items() if not np.isnan(value).all()}
        outputs = {split: self._outputs(cohort, each, count) for split, each in found.outputs.items()}
        return Measures(cohort, known, outputs, found.models if count else None)

    def scored(self, cohort: Cohort, down: Any, score: Callable[[Task, Deployable], Tensor]) -> Tensor:
        return ranks.gathered(super().scored(self.here(cohort), down, score), self.deal.places(cohort.ids))

    def _over(self, cohort: Cohort, work: Callable[[Task, Tensor], T]) -> tuple[list[Tensor], list[T]]:
        """A process that fails ends all, and before any of them waits for it."""
        return ranks.agreed(lambda: super(Sharded, self)._over(cohort, work), cohort.round)

    def _standing_in(self) -> "Sharded":
        """What takes one step for nothing, so that this process knows the form of an upload."""
        other = copy.copy(self)
        other.most_steps = 1
        return other

    def _outputs(self, cohort: Cohort, each: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
        """By silo of the cohort what its model gives, of what the models of this process give."""
        mine = each if count else {}
        sizes = ranks.from_all({name: len(rows) for name, rows in mine.items()})
        like = next(iter(each.values()), None)
        known = [form for form in ranks.from_all(None if like is None else [str(like.dtype), like.shape[1:]]) if form]
        if not known:
            return {}
        kind, shape = known[0]
        whole = torch.from_numpy(np.concatenate([np.empty((0, *shape), kind), *mine.values()]))
        lengths = [(sum(some.values()), *shape) for some in sizes]
        found = dict[str, np.ndarray]()
        for some, rows in zip(sizes, ranks.exchanged([whole] * ranks.count(), lengths), strict=True):
            ends = np.cumsum(list(some.values()))[:-1]
            found |= dict(zip(some, np.split(rows.numpy(), ends), strict=True)) if some else {}
        return {name: found[name] for name in cohort.names if name in found}
