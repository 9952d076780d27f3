"""The rounds of a federation: ask a cohort, take in who replied, measure. The same over any engine."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from coterie.engine.exchange import Engine, Replies, as_table
from coterie.engine.judge import judged
from coterie.engine.method import Cohort, Method, Roster
from coterie.engine.rows import Model
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.measure.metrics import Pick, main_measure, ranks
from coterie.wire import Deployable

MOST_TRACED = 2**28  # bytes of a method's traces: of 1,000 silos a round's are 8 MB


@dataclass(frozen=True)
class Progress:
    """What a progress bar shows."""

    round: int
    rounds: int  # at most; after the last round, how many there were
    score: float | None  # the latest mean over silos of what the study is scored by, on test data, or None
    measure: str = "accuracy"  # what that is
    tuning: bool = False  # whether these rounds are of the search that comes before
    tried: int = 0  # rounds of a search, each candidate's counted: those that are done
    to_try: int = 0  # and all


@dataclass(frozen=True)
class Picked:
    """The round that validation data pick (the last, where there are none)."""

    pick: Pick
    outputs: Mapping[str, Mapping[str, np.ndarray]]  # by split and silo what its model gives for every sample

    @property
    def round(self) -> int:
        return self.pick.round


@dataclass
class Outcome:
    """One method trained once."""

    server: Any
    results: list[pd.DataFrame] = field(default_factory=list)
    traces: dict[str, list[np.ndarray]] = field(default_factory=dict)
    measured: list[int] = field(default_factory=list)  # after how many rounds
    score: float | None = None  # the latest mean over silos of `measure` on test data
    measure: str = "accuracy"
    picked: Picked | None = None  # so far
    models: Deployable | None = None  # of the picked round, on the CPU, where they are here and kept
    temperatures: dict[str, float] = field(default_factory=dict)  # by silo, of classes: what makes them less sure
    thresholds: dict[str, float] = field(default_factory=dict)  # by silo, of two classes: from where on the second
    mixtures: dict[str, dict[str, float]] = field(default_factory=dict)  # by silo and candidate, of ensembles
    gated: dict[str, str] = field(default_factory=dict)  # silos that take one candidate alone, by a test
    refit_rounds: int = 0  # that the models on the disk were trained for, where they were trained again to be saved
    distilled: dict[str, dict[str, float]] = field(default_factory=dict)  # by silo, what one network of them loses
    kept: dict[str, int | None] = field(default_factory=dict)  # silos with another round's model, or None at all
    bytes_up: int = 0
    bytes_down: int = 0
    train_seconds: float = 0.0
    missing: int = 0  # replies that did not come, or do not count
    rejected: list[dict[str, Any]] = field(default_factory=list)  # round, silo and reason of replies that do not count
    heard: dict[str, list[list[float]]] = field(default_factory=dict)  # what the judge remembers, by silo

    def reject(self, round: int, replies: Replies) -> None:
        """Note which replies of a round did not count."""
        self.rejected += [{"round": round + 1, "silo": s, "reason": why} for s, why in replies.rejected.items()]


class Keeper(Protocol):
    """What keeps a run on a disk, so that it can go on where it was stopped."""

    def restore(self, outcome: Outcome, engine: Engine) -> int | None:
        """Bring a run that has not begun to where it was kept last: the rounds done, or None if it begins anew."""

    def keep(self, outcome: Outcome, engine: Engine, done: int) -> None:
        """Keep where a run stands after so many rounds, before any silo learns that its reply has arrived."""

    def note(self, outcome: Outcome) -> None:
        """Keep what was measured, and free the outcome of it."""


def run_rounds(
    method: Method,
    engine: Engine,
    roster: Roster,
    model: Model,
    training: Training,
    on_round: Callable[[Progress], None] = lambda progress: None,
    keeper: Keeper | None = None,
) -> Outcome:
    """Train a method from its first round, or from the one it was kept after, to its last."""
    reason = method.refusal(roster, model)
    if reason is not None:
        raise BadInput(f"{type(method).__name__}: {reason}")
    everyone = Cohort.everyone(roster, model, 0)
    outcome = Outcome(method.open(roster, model).settled())
    done = (None if keeper is None else keeper.restore(outcome, engine)) or 0
    while True:
        latest = replace(everyone, round=max(done - 1, 0))
        if training.measures(done) and done not in outcome.measured:
            measure(outcome, method, engine, latest, training, done)
            if keeper is not None:
                keeper.note(outcome)
        ended = done == training.rounds or _out_of_patience(outcome, training, done)
        on_round(Progress(done, done if ended else training.rounds, outcome.score, outcome.measure))
        if ended:
            keep_models(outcome, method, engine, latest)
            return outcome
        began = time.perf_counter()
        cohort, lost = draw_cohort(replace(everyone, round=done), training)
        outcome.missing += lost
        if len(cohort):
            exchange(outcome, method, engine, cohort, training)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        outcome.train_seconds += time.perf_counter() - began
        done += 1
        if keeper is not None:
            keeper.keep(outcome, engine, done)


def _out_of_patience(outcome: Outcome, training: Training, done: int) -> bool:
    """Whether validation data have seen nothing better for as many rounds as are waited for."""
    if not training.patience or outcome.picked is None or done not in outcome.measured:
        return False
    return done - outcome.picked.round >= training.patience


def draw_cohort(everyone: Cohort, training: Training) -> tuple[Cohort, int]:
    """Who is asked in a round and answers, and how many were asked in vain."""
    asked = drawn(everyone.roster, everyone.ids, "cohort", everyone.round, training.participation, at_least=1)
    lost = drawn(everyone.roster, asked, "lost", everyone.round, training.drop)
    # A reply that never arrives is rolled back by its silo, so a lost one is a silo that was never asked.
    return replace(everyone, ids=asked[~torch.isin(asked, lost)]), len(lost)


def exchange(outcome: Outcome, method: Method, engine: Engine, asked: Cohort, training: Training) -> None:
    """One round's models out and back; uploads and downloads are freed before the next round needs the memory."""
    down = method.send(outcome.server, asked)
    replies = engine.train(asked, down)
    replies = judged(method, engine, asked.ids, down, replies, training.norm_limit, outcome.heard)
    outcome.reject(asked.round, replies)
    if len(replies.cohort.ids):
        outcome.server = method.receive(outcome.server, replies.cohort, replies.up).settled()
    outcome.bytes_up += replies.bytes_up
    outcome.bytes_down += replies.bytes_down
    outcome.missing += len(replies.failures)


def measure(outcome: Outcome, method: Method, engine: Engine, everyone: Cohort, training: Training, after: int) -> None:
    """Measure every silo's model after so many rounds, and keep the method's traces."""
    before = [] if outcome.picked is None else [outcome.picked.round]
    hold = (*before, after) if after else ()
    measures = engine.measure(everyone, method.send(outcome.server, everyone), training.measure, hold)
    table = as_table(measures, after)
    outcome.results.append(table)
    outcome.measure = main_measure(table, training.by)
    outcome.score = _mean(table, outcome.measure)
    found = method.trace(outcome.server, everyone, engine.private())
    if found and _worth_keeping(sum(t.nbytes for t in found.values()), len(outcome.measured), after, training):
        for name, value in found.items():
            outcome.traces.setdefault(name, []).append(value.cpu().numpy())
        outcome.traces.setdefault("rounds", []).append(np.array(after))
    outcome.measured.append(after)
    if after and len(table):
        rank = ranks(table, training.by)[after]
        pick = Pick(after, rank, rank) if outcome.picked is None else outcome.picked.pick.after(after, rank)
        if pick.round == after:
            outcome.picked = Picked(pick, measures.outputs)
            outcome.models = None if measures.models is None else measures.models()
        elif outcome.picked is not None:
            outcome.picked = replace(outcome.picked, pick=pick)


def keep_models(outcome: Outcome, method: Method, engine: Engine, last: Cohort) -> None:
    """Have silos that are elsewhere keep the model of the picked round, by which they are judged."""
    hold = () if outcome.picked is None else (outcome.picked.round,)
    outcome.kept = engine.keep_models(last, method.send(outcome.server, last), hold)


def _worth_keeping(size: int, before: int, after: int, training: Training) -> bool:
    """Whether to keep the traces of this measured round: all do, or of many silos some at even distances."""
    planned = training.rounds // training.measure_every + 2
    apart = max(1, math.ceil(planned * size / MOST_TRACED))
    return before % apart == 0 or after == training.rounds


def drawn(roster: Roster, ids: Tensor, purpose: str, round: int, share: float, at_least: int = 0) -> Tensor:
    """A share of the silos at random; each silo's draw is its own, so renaming others changes nothing for it."""
    if share == 1:
        return ids
    names = [roster.names[i] for i in ids.tolist()]
    draws = np.array([generator(roster.seed, purpose, round, name).random() for name in names])
    count = max(at_least, round_half_up(share * len(names)))
    chosen = np.sort(np.argsort(draws, kind="stable")[:count])
    return ids[torch.from_numpy(chosen).to(ids.device)]


def round_half_up(value: float) -> int:
    """The nearest whole number."""
    return int(value + 0.5)


def _mean(table: pd.DataFrame, measure: str) -> float | None:
    test = table[(table["split"] == "test") & (table["measure"] == measure)]
    return float(test["value"].mean()) if len(test) else None


def traces(outcome: Outcome) -> Mapping[str, np.ndarray]:
    """What was kept of the measured rounds, by name: (rounds, ...), and after how many `rounds`."""
    return {name: np.stack(values) for name, values in outcome.traces.items()}
