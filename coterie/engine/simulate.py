"""The simulator: all silos as rows of one process, running the very code that a deployed silo runs on its one row."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from coterie.data.silo import Silo
from coterie.engine import memory, ranks
from coterie.engine.exchange import Kept, Measures, Replies, as_table
from coterie.engine.kept import keep_features
from coterie.engine.layout import Columns
from coterie.engine.measuring import measured
from coterie.engine.method import Cohort, Method, Roster, local_round, settled
from coterie.engine.over_processes import OverProcesses, columnwise, parts_of
from coterie.engine.rows import Model
from coterie.engine.store import SPLITS, Store
from coterie.engine.task import Task, task_of
from coterie.engine.threads import WORTH_SHARING, fitting, side_by_side
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.wire import About, Deployable, Record, assembled

T = TypeVar("T")
R = TypeVar("R", bound=Record)
TRIAL = 16  # rows in the trial that chooses between one and all


class Trained(Record):
    """What local training leaves."""

    up: Any  # what leaves the silos; None where they send nothing more
    kept: Any  # what stays


class Simulator:
    """An engine whose silos are rows."""

    def __init__(
        self,
        method: Method,
        silos: Sequence[Silo],
        model: Model,
        training: Training,
        seed: int,
        rows: int | str = "all",
        store: Store | None = None,
        models: bool = True,
    ) -> None:
        """`models`: whether the models of a measured round are handed out."""
        self.method, self.training, self.seed, self.models = method, training, seed, models
        self.most_steps: int | None = None
        memory.keep_freed()
        here = self.held(silos)
        self.model, self.store = keep_features(
            model, store or Store([silos[i] for i in here], model.device, model.dtype), training.keep_features
        )
        self.roster = roster_of(silos, seed, model.device)
        self._largest = {split: max(len(getattr(silo, split)) for silo in silos) for split in SPLITS}
        self._largest["train"] = training.taken(self._largest["train"])
        self._ids = torch.tensor(here, device=model.device)  # of the silos in the store
        self._row = torch.full((len(silos),), -1, device=model.device)  # of each silo in the store; -1: it is not here
        self._row[self._ids] = torch.arange(len(here), device=model.device)
        model.examine(self.store["train"].x)  # which columns a method shares may go by what its layers do
        self.rows = len(self.roster) if rows == "all" else self.measured_rows() if rows == "auto" else int(rows)
        self._private = method.enroll(self.roster, model, self._ids).settled()
        self._before: Any = None  # what silos kept before a round that is not settled

    def held(self, silos: Sequence[Silo]) -> list[int]:
        """Which of the silos are in this process."""
        return list(range(len(silos)))

    def here(self, cohort: Cohort) -> Cohort:
        """Those of a cohort that are in this process."""
        return cohort

    def task(self, ids: Tensor, round: int) -> Task:
        """The silos at these places of the roster, in one round."""
        task = task_of(self.training, self.model, self.store, self._row[ids], round, self.seed, self.most_steps)
        return replace(task, largest=self._largest)

    @torch.no_grad()
    def train(self, cohort: Cohort, down: Any) -> Replies:
        def trained(task: Task, place: Tensor) -> Trained:
            mine, private = down.take(place), self._private.take(task.silos)
            up, kept = local_round(self.method, task, mine, private)
            return Trained(up=up, kept=kept)

        if not len(cohort.ids):
            return Replies(cohort, None)
        found = self._whole(cohort, trained)
        self._before = self._private
        self._private = self._private.put(self._row[cohort.ids], found.kept)
        up, k = found.up, len(cohort.ids)
        return Replies(cohort, up, bytes_up=up.each_nbytes(k), bytes_down=down.each_nbytes(k))

    @torch.no_grad()
    def confirm(self, cohort: Cohort, question: Any) -> Replies:
        up = self._whole(cohort, lambda task, place: self.method.confirmed(task, question.take(place)))
        k = len(cohort)
        return Replies(cohort, up, bytes_up=up.each_nbytes(k), bytes_down=question.each_nbytes(k))

    def settle(self, rejected: Tensor) -> None:
        if len(rejected):
            rows = self._row[rejected]
            self._private = self._private.put(rows, self._before.take(rows))
        self._before = None

    @torch.no_grad()
    def measure(self, cohort: Cohort, down: Any, splits: tuple[str, ...], hold: tuple[int, ...] = ()) -> Measures:
        outputs: dict[str, dict[str, np.ndarray]] = {split: {} for split in splits if split != "train"}

        def worth(task: Task, place: Tensor) -> tuple[dict[tuple[str, str], Tensor], Deployable | None]:
            mine, private = down.take(place), self._private.take(task.silos)
            personal = self.method.personal(task, mine, private)
            found, given = measured(task, personal, self.method.cloud(task, mine, private), splits, self.training)
            for split, each in outputs.items():
                each.update(given[split])
            return found, personal if self.models else None

        values: dict[tuple[str, str], np.ndarray] = {}
        places, parts = self._over(cohort, worth)
        for place, (part, _) in zip(places, parts, strict=True):
            for key, value in part.items():
                values.setdefault(key, np.full(len(cohort.ids), np.nan))[place.cpu()] = value.cpu()
        ordered = {
            split: {name: each[name] for name in cohort.names if name in each} for split, each in outputs.items()
        }
        models = [personal for _, personal in parts if personal is not None]
        return Measures(cohort, values, ordered, partial(_on_cpu, models, places) if models else None)

    def keep_models(self, cohort: Cohort, down: Any, hold: tuple[int, ...]) -> dict[str, int | None]:
        return {}  # measuring has handed them out

    @torch.no_grad()
    def personal(self, cohort: Cohort, down: Any) -> Deployable:
        def deployed(task: Task, place: Tensor) -> Deployable:
            return self.method.personal(task, down.take(place), self._private.take(task.silos))

        return self._whole(cohort, deployed)

    def scored(self, cohort: Cohort, down: Any, score: Callable[[Task, Deployable], Tensor]) -> Tensor:
        """What each silo's model is worth (k,), by such a score."""
        return score(self.task(cohort.ids, cohort.round), self.personal(cohort, down))

    def columns(self, about: About, count: int) -> list[Columns] | None:
        """By process, of so many, its columns of a field of the server; None: each has all of it."""
        method = self.method.method if isinstance(self.method, OverProcesses) else self.method
        spread = about.has_columns and columnwise(method)
        return parts_of(method, self.model, about, count) if spread else None

    def columns_here(self, about: About) -> Columns | None:
        """The columns of such a field that are in this process."""
        parts = self.columns(about, ranks.count())
        return None if parts is None else parts[ranks.rank()]

    def private(self) -> Any:
        return self._private

    def kept(self) -> Kept:
        return Kept(self._private.tensors(), {"rows": self.rows, "silos": list(self.store.names)})

    def restore(self, kept: Kept) -> None:
        self._private = self._private.with_tensors(kept.tensors)
        self.rows = kept.about["rows"]  # fewer than at the start, where a GPU's memory did not hold them

    @torch.no_grad()
    def host(self, server: Any, round: int) -> Any:
        """Let these silos arrive after training: they settle, and what the server last sent them is returned."""
        newcomers = Cohort.everyone(self.roster, self.model, round)
        here, kept = self.here(newcomers), None

        def adapt(down: Any) -> Any:
            nonlocal kept

            def adapted(task: Task, place: Tensor) -> Trained:
                up, private = self.method.adapt(task, down.take(place), None if kept is None else kept.take(place))
                return Trained(up=up, kept=private)

            found = self._whole(here, adapted)
            kept = found.kept
            return found.up

        down = settled(self.method, server, newcomers, adapt)
        self._private = kept
        return down

    def measured_newcomers(self, server: Any) -> pd.DataFrame:
        """Let these silos arrive after training, and what their models are then worth, apart from the members'."""
        last = self.training.rounds - 1
        everyone = Cohort.everyone(self.roster, self.model, last)
        table = as_table(self.measure(everyone, self.host(server, last), self.training.measure), last + 1)
        return table.assign(measure=table["measure"] + "_unseen")

    def _whole(self, cohort: Cohort, work: Callable[[Task, Tensor], R]) -> R:
        """What work on all of the cohort's silos gives, in the cohort's order."""
        places, parts = self._over(cohort, work)
        return assembled(parts, places)

    def _over(self, cohort: Cohort, work: Callable[[Task, Tensor], T]) -> tuple[list[Tensor], list[T]]:
        """Work on the cohort's silos a few rows at a time, those with most data first: their places in it, and results.

        Where a GPU's memory does not hold so many rows, half as many go on from there.
        """
        count = self.store["train"].count[self._row[cohort.ids].cpu().numpy()]
        order = torch.from_numpy(np.argsort(-count, kind="stable")).to(cohort.ids.device)
        threads = self._threads(len(order), self.rows)
        if threads > 1:
            n = max(threads, -(-len(order) // self.rows))
            places = [order[first::n] for first in range(n)]

            self.store.drawn(self.training.round_samples, self.seed, cohort.round)  # once, not by each thread

            def call(place: Tensor) -> T:
                return work(self.task(cohort.ids[place], cohort.round), place)

            return places, side_by_side(call, places, threads)
        places, parts, done = list[Tensor](), list[T](), 0
        while done < len(order):
            place = order[done : done + self.rows]
            try:
                with fitting(self._work(len(place))):
                    parts.append(work(self.task(cohort.ids[place], cohort.round), place))
                places.append(place)
                done += len(place)
                continue
            except torch.OutOfMemoryError:
                pass  # left before memory is freed: the error holds on to what the call had
            if len(place) == 1:
                raise BadInput("not enough GPU memory for one silo's model; take a smaller [train] batch_size")
            self.rows = len(place) // 2
            torch.cuda.empty_cache()
        return places, parts

    def measured_rows(self) -> int:
        """All rows at once or one by one, whichever a quick trial finds faster (a GPU always wants all)."""
        everyone = len(self.roster)
        if everyone == 1 or self.model.device.type != "cpu":
            return everyone
        if self._work(1) >= WORTH_SHARING:  # work enough for a thread: company gains it nothing, and takes memory
            return 1
        largest = torch.from_numpy(np.argsort(-self.store["train"].count, kind="stable").copy())
        trials = [self.task(self._ids[largest[:rows]], 0) for rows in (1, min(everyone, TRIAL))]
        fastest = [np.inf, np.inf]
        for _ in range(4):  # in turn, so that a busy machine is busy for both; the first is a warm-up
            for each, task in enumerate(trials):
                start, batch = self.model.starts(self.seed, task.names, common=True), task.first_batch()
                with fitting(0 if self._threads(everyone, task.k) > 1 else self._work(task.k)):
                    began = time.perf_counter()
                    task.grad(start, batch)
                    fastest[each] = min(fastest[each], (time.perf_counter() - began) / task.k)
        return 1 if fastest[0] < fastest[1] else everyone

    def _threads(self, silos: int, rows: int) -> int:
        """How many calls of at most so many rows are better made at once than one that shares its work among threads.

        Each has to be worth it: Python goes through one step at a time, whichever thread's it is.
        """
        threads = min(torch.get_num_threads(), silos, int(self._work(silos) // WORTH_SHARING))
        if threads < 2 or not self.model.thread_safe or self._work(min(rows, -(-silos // threads))) < WORTH_SHARING:
            return 1
        return threads

    def _work(self, rows: int) -> float:
        return work_of(rows, self.training, self.model)


def work_of(rows: int, training: Training, model: Model) -> float:
    """Multiply-adds of a call: each weight meets each sample twice forward and four times backward."""
    return 6.0 * rows * training.batch_size * model.width


def _on_cpu(parts: Sequence[Deployable], places: Sequence[Tensor]) -> Deployable:
    """Models as one, off the GPU: the rounds to come need its memory."""
    return assembled([part.map(lambda t: t.cpu()) for part in parts], [place.cpu() for place in places])


def roster_of(silos: Sequence[Silo], seed: int, device: torch.device) -> Roster:
    """What silos declare when they join."""
    empty = next((silo.name for silo in silos if not len(silo.train)), None)
    if empty is not None:
        raise BadInput(f"silo '{empty}' has no training samples; leave it out or give it data")
    sizes = [[len(silo.train) for silo in silos], [len(silo.validation) for silo in silos]]
    train, validation = torch.tensor(sizes, dtype=torch.int64, device=device)
    return Roster(tuple(silo.name for silo in silos), train, validation, seed)
