"""The rounds of a federation: who is asked, who replies, what crosses, when it is measured."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from plain import make_engine, make_silos
from torch import Tensor, nn

from coterie.data.silo import Part
from coterie.engine import rounds
from coterie.engine.exchange import Failure, Measures, Replies
from coterie.engine.method import Batch, Cohort, Method, Model, Predictor, Roster, Task
from coterie.engine.rounds import Outcome, Progress, drawn, run_rounds, traces
from coterie.engine.simulate import Simulator
from coterie.engine.store import SPLITS
from coterie.engine.task import Weights, plain_step
from coterie.errors import BadInput
from coterie.measure.metrics import summarize
from coterie.methods import make
from coterie.methods.fedavg import FedAvg
from coterie.wire import Down, Server, Up, bank, shared
from coterie.wire import rows as per_silo


def linear() -> nn.Module:
    return nn.Linear(5, 3)  # 15 weights and 3 biases: 64 columns


class Library(Down):
    """A bank of models, of which each silo is handed as many as its place says."""

    start: Tensor = shared("the model to start from", role="model")
    books: Tensor = bank("models", picks="picks")
    picks: Tensor = per_silo("which of them", "m")


class Report(Up):
    """A model and two numbers."""

    w: Tensor = per_silo("the model", "d")
    seen: Tensor = per_silo("samples seen", "2")


class Shelf(Server):
    """What the server keeps."""

    w: Tensor = shared("a model", role="model")


@dataclass(frozen=True)
class Librarian(Method):
    """A made-up method that sends a bank: silo i is handed the first i of m models."""

    down: ClassVar[type[Down]] = Library
    up: ClassVar[type[Up]] = Report

    def open(self, roster: Roster, model: Model) -> Shelf:
        return Shelf(w=model.start(roster.seed))

    def send(self, server: Shelf, cohort: Cohort) -> Library:
        m = len(cohort.roster)
        places = torch.arange(m).expand(len(cohort.ids), m)
        picks = torch.where(places < cohort.ids[:, None], places, -1)
        return Library(start=server.w, books=server.w.expand(m, -1), picks=picks)

    def begin(self, task: Task, down: Library, private: Any) -> Weights:
        w = down.start.expand(task.k, -1)
        return Weights(w=w, opt=task.optimizer.init(w))

    def step(self, task: Task, state: Weights, batch: Batch) -> Weights:
        return plain_step(task, state, batch)

    def end(self, task: Task, state: Weights, down: Library, private: Any) -> tuple[Report, Any]:
        return Report(w=state.w, seen=task.counts()[:, None].expand(-1, 2)), private

    def personal(self, task: Task, down: Library, private: Any) -> Predictor:
        return Predictor(models=down.start.expand(task.k, -1))


class Watching(Simulator):
    """A simulator that notes who is asked, and of which some fail to reply."""

    def __init__(self, inner: Simulator, failing: frozenset[str] = frozenset()) -> None:
        self.__dict__.update(inner.__dict__)
        self.failing, self.asked = failing, list[list[str]]()
        self.lrs = list[float]()

    def train(self, cohort: Cohort, down: Any) -> Replies:
        names = [cohort.roster.names[i] for i in cohort.ids.tolist()]
        self.asked.append(names)
        self.lrs.append(self.task(cohort.ids, cohort.round).lr)
        stay = torch.tensor([i for i, name in enumerate(names) if name not in self.failing], dtype=torch.int64)
        failures = {name: Failure("away") for name in names if name in self.failing}
        if not len(stay):
            return Replies(replace(cohort, ids=cohort.ids[stay]), None, failures)
        replies = super().train(replace(cohort, ids=cohort.ids[stay]), down.take(stay))
        return replace(replies, failures=failures)


def run(engine: Simulator, watch: Any = lambda progress: None) -> Outcome:
    return run_rounds(engine.method, engine, engine.roster, engine.model, engine.training, watch)


def watching(failing: frozenset[str] = frozenset(), **train: object) -> Watching:
    return Watching(make_engine(linear, make_silos((7, 10, 6, 5, 8)), **train), failing)


@pytest.mark.parametrize(("share", "expected"), [(1.0, 5), (0.5, 3), (0.4, 2), (0.3, 2), (0.2, 1), (0.01, 1)])
def test_a_round_asks_the_share_that_takes_part_but_never_nobody(share: float, expected: int) -> None:
    engine = watching(participation=share, rounds=6)
    run(engine)
    assert [len(names) for names in engine.asked] == [expected] * 6
    if expected < 5:
        assert len({tuple(names) for names in engine.asked}) > 1  # drawn anew each round
    for names in engine.asked:
        assert names == [name for name in engine.roster.names if name in names]  # in the roster's order


@pytest.mark.parametrize(("share", "drop", "replying"), [(1.0, 0.4, 3), (0.6, 0.34, 2), (1.0, 1.0, 0), (1.0, 0.05, 5)])
def test_lost_replies_are_counted_and_their_silos_untouched(share: float, drop: float, replying: int) -> None:
    engine = watching(participation=share, drop=drop, rounds=4)
    outcome = run(engine)
    asked = round(5 * share)
    assert outcome.missing == 4 * (asked - replying)
    assert [len(names) for names in engine.asked] == ([replying] * 4 if replying else [])
    if not replying:
        assert torch.equal(outcome.server.w, engine.model.start(engine.seed))
        assert outcome.bytes_up == outcome.bytes_down == 0


def test_silos_that_fail_are_left_out_of_the_mean_and_counted() -> None:
    some = watching(frozenset({"north", "west"}), rounds=1)
    outcome = run(some)
    assert outcome.missing == 2
    fewer = make_engine(linear, [s for s in make_silos((7, 10, 6, 5, 8)) if s.name not in ("north", "west")], rounds=1)
    torch.testing.assert_close(outcome.server.w, run(fewer).server.w)
    nobody = run(watching(frozenset(("north", "south", "east", "west", "centre")), rounds=2))
    assert nobody.missing == 10
    assert torch.equal(nobody.server.w, some.model.start(some.seed))


def test_draws_go_by_the_silos_names() -> None:
    def roster(names: str, seed: int = 0) -> Roster:
        return Roster(tuple(names), torch.ones(len(names)), torch.ones(len(names)), seed)

    def chosen(names: str, round: int = 0, purpose: str = "cohort", seed: int = 0) -> list[str]:
        ids = drawn(roster(names, seed), torch.arange(len(names)), purpose, round, 0.5)
        return [names[i] for i in ids.tolist()]

    names = "abcdefghijkl"
    assert len(chosen(names)) == 6
    assert sorted(chosen(names[::-1])) == sorted(chosen(names))  # not by their place
    assert chosen(names) == chosen(names)
    others = {tuple(chosen(names, round=1)), tuple(chosen(names, purpose="lost")), tuple(chosen(names, seed=1))}
    assert tuple(chosen(names)) not in others
    assert len(others) == 3
    # taking out somebody who was not chosen leaves those who were, but for the smaller number
    absent = next(name for name in names if name not in chosen(names))
    assert set(chosen(names.replace(absent, ""))) <= set(chosen(names))


def test_draws_are_even() -> None:
    names = tuple(f"silo-{i}" for i in range(10))
    roster = Roster(names, torch.ones(10), torch.ones(10), 0)
    counts = np.zeros(10)
    for round in range(400):
        counts[drawn(roster, torch.arange(10), "cohort", round, 0.3).numpy()] += 1
    assert abs(counts - 120).max() < 4 * (400 * 0.3 * 0.7) ** 0.5


def test_bytes_are_those_of_every_tensor_that_crossed() -> None:
    outcome = run(make_engine(linear, dtype=torch.float32))
    model = 4 * 64
    assert outcome.bytes_up == 3 * 3 * model  # rounds × silos
    assert outcome.bytes_down == 3 * 3 * model
    some = run(make_engine(linear, make_silos((7, 10, 6, 5, 8)), dtype=torch.float32, participation=0.4, drop=0.5))
    assert some.bytes_up == 3 * 1 * model


@pytest.mark.parametrize("rows_at_once", [1, "all"])
def test_each_silo_is_sent_only_the_models_of_a_bank_that_it_is_handed(rows_at_once: int | str) -> None:
    outcome = run(make_engine(linear, method=Librarian(), rows=rows_at_once, dtype=torch.float32, rounds=2))
    model, picks = 4 * 64, 8 * 3
    assert outcome.bytes_down == 2 * sum(model + handed * model + picks for handed in (0, 1, 2))
    assert outcome.bytes_up == 2 * 3 * (model + 2 * 8)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1] * 4),
        ({"schedule": "steps"}, [0.1, 0.1, 0.01, 0.001]),
        ({"schedule": "steps", "schedule_at": (0.25,), "schedule_factor": 0.5}, [0.1, 0.05, 0.05, 0.05]),
        ({"schedule": "steps", "schedule_rounds": 8}, [0.1] * 4),
        ({"schedule": "steps", "schedule_rounds": 2}, [0.1, 0.01, 0.001, 0.001]),
        ({"schedule": "cosine", "schedule_rounds": 2}, [0.1, 0.05, 0, 0]),
        ({"schedule": "cosine"}, [0.1, 0.05 * (1 + math.sqrt(0.5)), 0.05, 0.05 * (1 - math.sqrt(0.5))]),
    ],
)
def test_the_learning_rate_follows_its_schedule(options: dict[str, object], expected: list[float]) -> None:
    engine = watching(rounds=4, **options)
    run(engine)
    assert engine.lrs == pytest.approx(expected)


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (9, [0, 5])])
def test_measured_before_the_first_every_so_often_and_after_the_last_round(every: int, expected: list[int]) -> None:
    outcome = run(make_engine(linear, rounds=5, measure_every=every))
    assert outcome.measured == expected
    assert [set(table["round"]) for table in outcome.results] == [{after} for after in expected]


def test_a_method_ends_when_validation_data_have_seen_nothing_better_for_long_enough() -> None:
    whole = run(make_engine(linear, rounds=30, lr=2.0))
    told: list[Progress] = []
    short = run(make_engine(linear, rounds=30, lr=2.0, patience=3), told.append)
    assert short.picked is not None and whole.picked is not None
    assert short.measured == list(range(short.picked.round + 4)) and short.measured[-1] < 30
    assert short.picked.round <= whole.picked.round
    assert (told[-1].round, told[-1].rounds) == (short.measured[-1], short.measured[-1])  # the last that is told
    assert [p.rounds for p in told[:-1]] == [30] * (len(told) - 1)
    for after, table in enumerate(short.results):  # until then it is the same run
        pd.testing.assert_frame_equal(table, whole.results[after])


def test_without_validation_data_no_round_is_too_many() -> None:
    silos = make_silos(validation=(0, 0, 0, 0))
    assert run(make_engine(linear, silos, rounds=8, patience=2)).measured[-1] == 8


def test_patience_ends_at_rounds_that_were_measured() -> None:
    outcome = run(make_engine(linear, rounds=30, lr=2.0, patience=2, measure_every=5))
    assert outcome.picked is not None
    assert outcome.measured[-1] == outcome.picked.round + 5 < 30


def test_only_the_splits_asked_for_are_measured() -> None:
    outcome = run(make_engine(linear, measure=("test",)))
    for table in outcome.results:
        assert set(table["split"]) == {"test"}
        assert set(table["measure"]) == {"accuracy", "loss"}


@dataclass(frozen=True)
class Traced(FedAvg):
    """FedAvg that lets its server be looked at."""

    def trace(self, server: Any, everyone: Any, private: Any) -> dict[str, Tensor]:
        return {"norm": server.w.norm()}


def test_traces_and_progress_are_those_of_the_measured_rounds() -> None:
    told: list[Progress] = []
    engine = make_engine(linear, method=Traced(), measure_every=2)
    outcome = run(engine, told.append)
    norms = traces(outcome)["norm"]
    assert norms.shape == (3,)  # before, after 2 and after 3 rounds
    assert norms[0] == pytest.approx(float(engine.model.start(engine.seed).norm()))
    assert norms[-1] == pytest.approx(float(outcome.server.w.norm()))
    assert [(p.round, p.rounds) for p in told] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    last = outcome.results[-1]
    test = last[(last["split"] == "test") & (last["measure"] == "accuracy")]
    assert told[-1].score == pytest.approx(test["value"].mean())


@pytest.mark.parametrize(("room", "kept"), [(8 * 8, [0, 1, 2, 3, 4, 5, 6]), (8 * 4, [0, 2, 4, 6]), (8, [0, 6])])
def test_traces_too_large_to_keep_are_kept_of_some_rounds(
    monkeypatch: pytest.MonkeyPatch, room: int, kept: list[int]
) -> None:
    monkeypatch.setattr(rounds, "MOST_TRACED", room)
    outcome = run(make_engine(linear, method=Traced(), rounds=6))  # a norm has 8 bytes
    found = traces(outcome)
    assert found["rounds"].tolist() == kept and found["norm"].shape == (len(kept),)
    assert outcome.measured == [0, 1, 2, 3, 4, 5, 6]
    assert found["norm"][-1] == pytest.approx(float(outcome.server.w.norm()))


def test_the_models_are_those_of_the_round_that_validation_data_pick() -> None:
    silos = make_silos((7, 10, 6, 5, 8))
    for name in ("fedavg", "fedamp", "fedem", "scaffold"):
        outcome = run(make_engine(linear, silos, make(name, {}), rounds=4, lr=0.3))
        assert outcome.picked is not None and outcome.picked.round < 4 and outcome.models is not None
        short = make_engine(linear, silos, make(name, {}), rounds=outcome.picked.round, lr=0.3)
        server = run(short).server
        last = Cohort(torch.arange(5), outcome.picked.round - 1, short.roster, short.model)
        expected = short.personal(last, short.method.send(server, last))
        for field_name, tensor in expected.tensors().items():
            assert torch.equal(outcome.models.tensors()[field_name], tensor), (name, field_name)


def test_without_validation_data_the_models_are_those_of_the_last_round() -> None:
    outcome = run(make_engine(linear, rounds=4, lr=0.3, measure=("train", "test")))
    assert outcome.picked is not None and outcome.picked.round == 4 and outcome.models is not None
    assert torch.equal(outcome.models.models, outcome.server.w.expand(3, -1))


def test_each_measured_round_fine_tunes_once_and_models_are_handed_out_where_they_are_kept() -> None:
    asked = list[int]()

    class Counting(FedAvg):
        def personal(self, task: Task, down: Any, private: Any) -> Predictor:
            asked.append(task.round)
            return super().personal(task, down, private)

    for models in (True, False):
        asked.clear()
        engine = make_engine(linear, method=Counting(), rounds=4, lr=0.3)
        engine.models = models
        assert (run(engine).models is not None) == models
        assert asked == [0, 0, 1, 2, 3]  # before the first round, and after each


class Absent(Simulator):
    """A simulator of which some silos do not answer when they are measured after some rounds."""

    def __init__(self, inner: Simulator, away: dict[int, list[int]]) -> None:
        self.__dict__.update(inner.__dict__)
        self.away = away

    def measure(self, cohort: Cohort, down: Any, splits: tuple[str, ...], hold: tuple[int, ...] = ()) -> Measures:
        found = super().measure(cohort, down, splits)
        for value in found.values.values():
            value[self.away.get(max(hold, default=0), [])] = np.nan
        return found


def test_the_round_is_the_one_that_a_summary_picks_whoever_was_measured() -> None:
    draw, silos = np.random.default_rng(0), make_silos((7, 10, 6, 5, 8))
    for rounds_ in ((), (2,), (1, 3), (1, 2, 3, 4)):
        away = {r: draw.choice(5, draw.integers(1, 5), replace=False).tolist() for r in rounds_}
        for classes, build in ((3, linear), (0, lambda: nn.Linear(5, 1))):
            engine = make_engine(build, silos, classes=classes, rounds=4, lr=0.02) if classes else numbers(build)
            outcome = run(Absent(engine, away))
            table = pd.concat(outcome.results).assign(method="it", seed=0)
            told = summarize(table, {0: dict.fromkeys(engine.roster.names, 6)}, {})["it"]
            assert outcome.picked is not None and outcome.picked.round == told["picked_round"]


def numbers(build: Any) -> Simulator:
    """Silos whose labels are numbers."""
    silos = [
        replace(silo, **{s: Part(p.x, p.x[:, :1]) for s in SPLITS for p in [getattr(silo, s)]})
        for silo in make_silos((7, 10, 6, 5, 8))
    ]
    return make_engine(build, silos, classes=0, rounds=4, lr=0.02)


@dataclass(frozen=True)
class Picky(FedAvg):
    """Refuses everybody."""

    reason: str = field(default="not with these silos")

    def refusal(self, roster: Roster, model: Model) -> str | None:
        return self.reason


def test_a_method_may_refuse_before_anything_is_trained() -> None:
    with pytest.raises(BadInput, match="Picky: not with these silos"):
        run(make_engine(linear, method=Picky()))


def test_a_run_is_a_function_of_its_seed() -> None:
    first, again, other = (run(make_engine(linear, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first.server.w, again.server.w)
    assert not torch.equal(first.server.w, other.server.w)
