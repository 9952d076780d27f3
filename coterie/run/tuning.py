"""The search behind `lr = "auto"` and `optimizer = "auto"`: before the run, on validation data, alike for all methods.

Successive halving (Jamieson and Talwalkar, AISTATS 2016): all candidates train for a few rounds, the better half goes
on for as many again, and so on. Those with one optimiser are rows of the same calls (`methods/wrappers/candidates.py`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from statistics import fmean, median
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from coterie.engine import ranks
from coterie.engine.exchange import Engine, Kept
from coterie.engine.measuring import measure
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import Progress, draw_cohort
from coterie.engine.simulate import Simulator
from coterie.engine.task import Task
from coterie.engine.training import Training
from coterie.errors import warn
from coterie.methods.wrappers.candidates import Candidates, each, together
from coterie.run.assembly import Assembly
from coterie.run.spread import Report, Tell, spread
from coterie.studies.study import Study
from coterie.wire import Deployable, Private, Server

GRID = {"sgd": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), "adam": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)}
DECAYS = (0.0, 0.1, 1.0)  # of weights, where columns outnumber rows: what the rows do not set, decay has to
RUNGS = (5, 10, 20, 40)  # rounds after which the better half goes on
COLUMNS = ["method", "optimizer", "lr", "weight_decay", "round", "score"]


def validation_loss(task: Task, predictor: Deployable) -> Tensor:
    """What silos' models are worth, (k,): the log-loss or squared error on validation data, negated; NaN: not known."""
    found = measure(task, predictor, "validation")
    return -found["loss"] if found else torch.full((task.k,), torch.nan)


def tuned(
    study: Study,
    federation: Assembly,
    on_round: Callable[[str, Progress], None] = lambda method, progress: None,
) -> tuple[Study, pd.DataFrame]:
    """The study with a value wherever it was `auto`, and all that was tried: method, optimizer, lr, round, score."""
    if not study.auto:
        return study, pd.DataFrame(columns=COLUMNS)
    if not any(len(silo.validation) for silo in federation.members):
        warn("auto: no silo has validation data to search by; taking fixed values for rounds, lr and optimizer")
        return study.fixed(), pd.DataFrame(columns=COLUMNS)
    study = study.pinned()
    labels = [label for label in study.methods if study.searched(label)]
    found = dict[str, tuple[dict[str, Any], pd.DataFrame]]()

    def find(label: str, tell: Tell) -> None:
        method, training, keys = study.methods[label], study.training_of(label), study.searched(label)
        best, tried = search(federation, method, training, keys, lambda progress: tell(asdict(progress)))
        tell({"best": best, "tried": tried.to_dict("records")})

    def on_report(label: str, report: Report) -> None:
        if "best" in report:
            found[label] = report["best"], pd.DataFrame(report["tried"])
        else:
            on_round(label, Progress(**report))

    spread(labels, find, on_report, ranks.count() == 1 and federation.thin)
    return searched(study, lambda label, keys: found[label])


def searched(
    study: Study, find: Callable[[str, tuple[str, ...]], tuple[dict[str, Any], pd.DataFrame]]
) -> tuple[Study, pd.DataFrame]:
    """The study with what is found for each method, by its label and the keys to find, and all that was tried."""
    own, tried = dict(study.own), list[pd.DataFrame]()
    for label in study.methods:
        if keys := study.searched(label):
            found, table = find(label, keys)
            own |= {label: both} if (both := own.get(label, {}) | found) else {}
            tried.append(table.assign(method=label))
    whole = pd.concat(tried, ignore_index=True)[COLUMNS] if tried else pd.DataFrame(columns=COLUMNS)
    return study.settled(own), whole


def search(
    federation: Assembly,
    method: Method,
    training: Training,
    keys: tuple[str, ...],
    on_round: Callable[[Progress], None],
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The values of these keys that suit a method, and all that was tried."""
    inner = federation.suited(method, training)
    shared = replace(training, buffers="shared")
    decays = DECAYS if "weight_decay" in keys and _wide(federation) else (training.weight_decay,)
    heats: list[Heat] = [
        Simulated(federation, inner, replace(shared, optimizer=name, weight_decay=decay), GRID[name])
        for name in optimizers(training, keys)
        for decay in decays
    ]
    return halved(heats, training, keys, on_round)


def optimizers(training: Training, keys: tuple[str, ...]) -> list[Literal["sgd", "adam"]]:
    """Those that are tried."""
    both = "optimizer" in keys and not training.momentum  # which Adam has none of
    return ["sgd", "adam"] if both else [training.optimizer]


def rungs_of(training: Training, candidates: int) -> list[int]:
    """The rounds after which the better half goes on, the last of them after which the best is taken.

    Once one candidate is left nothing more is to be found out.
    """
    halvings = max((candidates - 1).bit_length(), 1)  # until one is left
    return sorted({min(rung, training.rounds) for rung in RUNGS[:halvings]})


def rounds_of(rungs: Sequence[int], candidates: int) -> int:
    """How many rounds of single candidates a search takes."""
    total, done = 0, 0
    for rung in rungs:
        total += candidates * (rung - done)
        candidates, done = math.ceil(candidates / 2), rung
    return total


def halved(
    heats: "Sequence[Heat]", training: Training, keys: tuple[str, ...], on_round: Callable[[Progress], None]
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The values of the best candidate of all heats, and all that was tried."""
    candidates = sum(len(heat.rates) for heat in heats)
    rungs = rungs_of(training, candidates)
    tried, done, counted, in_all = list[dict[str, Any]](), 0, 0, rounds_of(rungs, candidates)
    for rung in rungs:
        for heat in heats:
            for round in range(done, rung):
                heat.advance(round)
                counted += len(heat.rates)
                on_round(Progress(round + 1, rungs[-1], None, tuning=True, tried=counted, to_try=in_all))
            heat.judge(rung - 1)
            tried += [{**heat.values(i), "round": rung, "score": heat.latest[i]} for i in range(len(heat.rates))]
        done = rung
        # A run picks its best round, so a candidate is worth what it was at its best; of equals the smaller rate wins.
        ranked = sorted(((h, i) for h in heats for i in range(len(h.rates))), key=lambda each: -each[0].best[each[1]])
        going_on = ranked[: math.ceil(len(ranked) / 2)]
        if rung < rungs[-1]:
            heats = [heat.narrowed(sorted(some)) for heat in heats if (some := [i for h, i in going_on if h is heat])]
    heat, i = ranked[0]
    found = heat.values(i)
    return {key: found[key] for key in keys}, pd.DataFrame(tried)


def advanced(engine: Engine, method: Method, server: Server, everyone: Cohort, training: Training) -> Server:
    """What the candidates' servers keep after one more round; of uploads, those count that are sound."""
    cohort, _ = draw_cohort(everyone, training)
    if not len(cohort):
        return server
    down = method.send(server, cohort)
    replies = engine.train(cohort, down)
    engine.settle(cohort.ids[:0])
    if not len(replies.cohort):
        return server
    if len(replies.cohort) < len(cohort):
        down = down.take(torch.searchsorted(cohort.ids, replies.cohort.ids))
    after: Server = method.receive(server, replies.cohort, method.unpacked(down, replies.up)).settled()
    return after


class Heat(ABC):
    """Candidates with the same optimiser, which train in the same calls."""

    def __init__(self, training: Training, rates: tuple[float, ...], best: list[float] | None = None) -> None:
        """`best` are their best scores so far."""
        self.training, self.rates = training, rates
        self.best = best or [-math.inf] * len(rates)
        self.latest = list[float]()

    def values(self, i: int) -> dict[str, Any]:
        """What a candidate trains with."""
        training = self.training
        return {"optimizer": training.optimizer, "lr": self.rates[i], "weight_decay": training.weight_decay}

    def judge(self, round: int) -> None:
        """Note what each candidate is worth after a round."""
        self.latest = [score if math.isfinite(score) else -math.inf for score in self.scores(round)]
        self.best = [max(both) for both in zip(self.best, self.latest, strict=True)]

    @abstractmethod
    def advance(self, round: int) -> None:
        """One round, counted from 0."""

    @abstractmethod
    def scores(self, round: int) -> list[float]:
        """What each candidate is worth after a round, over silos; not finite where it diverged."""

    @abstractmethod
    def narrowed(self, chosen: list[int]) -> "Heat":
        """Some of the candidates, as they stand."""


class Simulated(Heat):
    """Candidates on silos of this process."""

    def __init__(
        self,
        federation: Assembly,
        method: Method,
        training: Training,
        rates: tuple[float, ...],
        before: tuple[Server, Private] | None = None,
        best: list[float] | None = None,
    ) -> None:
        """`before` is where the candidates stand, if not at their start."""
        super().__init__(training, rates, best)
        self.federation, self.method = federation, method
        self.engine = federation.engine(Candidates(method, rates), replace(training, lr=1.0), models=False)
        self.server = self.engine.method.open(self.engine.roster, self.engine.model)
        if before is not None:
            self.server = before[0]
            _put(self.engine, before[1])

    def advance(self, round: int) -> None:
        everyone = Cohort.everyone(self.engine.roster, self.engine.model, round)
        self.server = advanced(self.engine, self.engine.method, self.server, everyone, self.training)

    def scores(self, round: int) -> list[float]:
        return [self._score(i, round) for i in range(len(self.rates))]

    def _score(self, i: int, round: int) -> float:
        training = replace(self.training, lr=self.rates[i])
        engine = self.federation.engine(self.method, training, models=False)
        _put(engine, each(self.engine.private())[i])
        everyone = Cohort.everyone(engine.roster, engine.model, round)
        down = engine.method.send(each(self.server)[i], everyone)
        return middle(engine.scored(everyone, down, validation_loss).tolist())

    def narrowed(self, chosen: list[int]) -> "Simulated":
        servers, privates = each(self.server), each(self.engine.private())
        before = (together(Server, [servers[i] for i in chosen]), together(Private, [privates[i] for i in chosen]))
        rates, best = tuple(self.rates[i] for i in chosen), [self.best[i] for i in chosen]
        return Simulated(self.federation, self.method, self.training, rates, before, best)


def middle(scores: Sequence[float]) -> float:
    """The mean over silos less the lowest and the highest quarter, so that no silo by itself chooses; NaN: of none."""
    known = sorted(score for score in scores if not math.isnan(score))
    cut = math.ceil(len(known) / 4) if len(known) > 2 else 0
    return fmean(known[cut : len(known) - cut]) if known else math.nan


def _wide(federation: Assembly) -> bool:
    """Whether a sample has more inputs than the middle silo has training rows."""
    rows = median(len(silo.train) for silo in federation.members)
    return math.prod(federation.members[0].train.x.shape[1:]) > rows


def _put(engine: Simulator, private: Private) -> None:
    """Have an engine's silos keep this."""
    engine.restore(Kept(private.tensors(), {"rows": engine.rows}))
