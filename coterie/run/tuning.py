"""The search behind `lr = "auto"` and `optimizer = "auto"`: before the run, on validation data, alike for all methods.

Successive halving (Jamieson and Talwalkar, AISTATS 2016): all candidates train for a few rounds, the better half goes
on for as many again, and so on. Those with one optimiser are rows of the same calls (`methods/wrappers/candidates.py`).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from coterie.engine.exchange import Kept
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import Progress, draw_cohort
from coterie.engine.simulate import Simulator
from coterie.engine.task import Task
from coterie.engine.training import Training
from coterie.errors import warn
from coterie.methods.wrappers.candidates import Candidates, each, together
from coterie.run.assembly import Assembly
from coterie.studies.study import Study
from coterie.wire import Predictor, Private, Server

GRID = {"sgd": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), "adam": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)}
DECAYS = (0.0, 0.1, 1.0)  # of weights, where columns outnumber rows: what the rows do not set, decay has to
RUNGS = (5, 10, 20, 40)  # rounds after which the better half goes on
COLUMNS = ["method", "optimizer", "lr", "weight_decay", "round", "score"]
Score = Callable[[Task, Predictor], Tensor]  # what each silo's model is worth, (k,): higher is better, NaN: not known


def validation_loss(task: Task, predictor: Predictor) -> Tensor:
    """The log-loss or squared error on validation data, negated."""
    found = task.measure(predictor, "validation")
    return -found["loss"] if found else torch.full((task.k,), torch.nan)


def tuned(
    study: Study,
    federation: Assembly,
    on_round: Callable[[str, Progress], None] = lambda method, progress: None,
    score: Score = validation_loss,
) -> tuple[Study, pd.DataFrame]:
    """The study with a value wherever it was `auto`, and all that was tried: method, optimizer, lr, round, score."""
    if not study.auto:
        return study, pd.DataFrame(columns=COLUMNS)
    if not any(len(silo.validation) for silo in federation.members):
        warn("auto: no silo has validation data to search by; taking fixed values for rounds, lr and optimizer")
        return study.fixed(), pd.DataFrame(columns=COLUMNS)
    own, tried = dict(study.own), list[pd.DataFrame]()
    for label, method in study.methods.items():
        if keys := study.searched(label):
            found, table = search(federation, method, study.training_of(label), keys, score, partial(on_round, label))
            own[label] = own.get(label, {}) | found
            tried.append(table.assign(method=label))
    whole = pd.concat(tried, ignore_index=True)[COLUMNS] if tried else pd.DataFrame(columns=COLUMNS)
    return replace(study, own=own, auto={}), whole


def search(
    federation: Assembly,
    method: Method,
    training: Training,
    keys: tuple[str, ...],
    score: Score,
    on_round: Callable[[Progress], None],
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The values of these keys that suit a method, and all that was tried."""
    inner = federation.engine(method, training, models=False).method  # with its statistics kept local, where they are
    shared = replace(training, buffers="shared")
    both = "optimizer" in keys and not training.momentum  # which Adam has none of
    names: list[Literal["sgd", "adam"]] = ["sgd", "adam"] if both else [training.optimizer]
    decays = DECAYS if "weight_decay" in keys and _wide(federation) else (training.weight_decay,)
    heats = [
        Heat(federation, inner, replace(shared, optimizer=name, weight_decay=decay), GRID[name])
        for name in names
        for decay in decays
    ]
    rungs, tried, done = sorted({min(rung, training.rounds) for rung in RUNGS}), list[dict[str, Any]](), 0
    for rung in rungs:
        for heat in heats:
            for round in range(done, rung):
                heat.advance(round)
                on_round(Progress(round + 1, rungs[-1], None, tuning=True))
            heat.judge(score, rung - 1)
            tried += [{**heat.values(i), "round": rung, "score": heat.latest[i]} for i in range(len(heat.rates))]
        done = rung
        # A run picks its best round, so a candidate is worth what it was at its best; of equals the smaller rate wins.
        ranked = sorted(((h, i) for h in heats for i in range(len(h.rates))), key=lambda each: -each[0].best[each[1]])
        going_on = ranked[: math.ceil(len(ranked) / 2)]
        if rung < rungs[-1]:
            heats = [heat.narrowed(some) for heat in heats if (some := [i for h, i in going_on if h is heat])]
    heat, i = ranked[0]
    found = heat.values(i)
    return {key: found[key] for key in keys}, pd.DataFrame(tried)


class Heat:
    """Candidates with the same optimiser, which train in the same calls."""

    def __init__(
        self,
        federation: Assembly,
        method: Method,
        training: Training,
        rates: tuple[float, ...],
        before: tuple[Server, Private] | None = None,
        best: list[float] | None = None,
    ) -> None:
        """`before` is where the candidates stand, if not at their start, and `best` their best scores so far."""
        self.federation, self.method, self.training, self.rates = federation, method, training, rates
        self.best = best or [-math.inf] * len(rates)
        self.engine = federation.engine(Candidates(method, rates), replace(training, lr=1.0), models=False)
        self.server = self.engine.method.open(self.engine.roster, self.engine.model)
        if before is not None:
            self.server = before[0]
            _put(self.engine, before[1])

    def values(self, i: int) -> dict[str, Any]:
        """What a candidate trains with."""
        training = self.training
        return {"optimizer": training.optimizer, "lr": self.rates[i], "weight_decay": training.weight_decay}

    def advance(self, round: int) -> None:
        """One round, counted from 0."""
        engine, method = self.engine, self.engine.method
        cohort, _ = draw_cohort(Cohort.everyone(engine.roster, engine.model, round), self.training)
        if len(cohort):
            down = method.send(self.server, cohort)
            replies = engine.train(cohort, down)
            engine.settle(cohort.ids[:0])
            self.server = method.receive(self.server, cohort, method.unpacked(down, replies.up)).settled()

    def judge(self, score: Score, round: int) -> None:
        """Note what each candidate is worth after a round: the mean over silos, -inf where it diverged."""
        self.latest = [self._score(i, score, round) for i in range(len(self.rates))]
        self.best = [max(both) for both in zip(self.best, self.latest, strict=True)]

    def _score(self, i: int, score: Score, round: int) -> float:
        training = replace(self.training, lr=self.rates[i])
        engine = self.federation.engine(self.method, training, models=False)
        _put(engine, each(self.engine.private())[i])
        everyone = Cohort.everyone(engine.roster, engine.model, round)
        models = engine.personal(everyone, self.method.send(each(self.server)[i], everyone))
        mean = float(score(engine.task(everyone.ids, round), models).nanmean())
        return mean if math.isfinite(mean) else -math.inf

    def narrowed(self, chosen: list[int]) -> "Heat":
        """Some of the candidates, as they stand."""
        servers, privates, chosen = each(self.server), each(self.engine.private()), sorted(chosen)
        before = (together(Server, [servers[i] for i in chosen]), together(Private, [privates[i] for i in chosen]))
        rates, best = tuple(self.rates[i] for i in chosen), [self.best[i] for i in chosen]
        return Heat(self.federation, self.method, self.training, rates, before, best)


def _wide(federation: Assembly) -> bool:
    """Whether a sample has more inputs than the middle silo has training rows."""
    rows = median(len(silo.train) for silo in federation.members)
    return math.prod(federation.members[0].train.x.shape[1:]) > rows


def _put(engine: Simulator, private: Private) -> None:
    """Have an engine's silos keep this."""
    engine.restore(Kept(private.tensors(), {"rows": engine.rows}))
