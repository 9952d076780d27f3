"""`lr = "auto"` between real silos: the search of a simulation, its rounds counted, and gone on with where it broke."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from loop import NAMES, Loop, job, settle, silos

from coterie.codec import decode, encode_up
from coterie.deploy.drive import RemoteRun, study_of
from coterie.deploy.messages import Answer, Job, Request, Scored, request
from coterie.deploy.patience import Patience
from coterie.deploy.search import announced, extra_rounds
from coterie.deploy.silo import SiloSide
from coterie.engine.exchange import Failure
from coterie.errors import BadInput
from coterie.models import build
from coterie.run import tuning
from coterie.run.assembly import Assembly

QUICK = Patience(gather=0, reply=1, silence=0, pause=0)
TABLE = {
    "name": "three",
    "seeds": [1],
    "model": {"name": "mlp", "hidden": [4]},
    "train": {
        "rounds": 3,
        "local_epochs": 1,
        "batch_size": 4,
        "whole_batches": True,
        "lr": "auto",
        "optimizer": "auto",
    },
    "methods": {"fedavg": {}, "apple": {}},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "RUNGS", (1, 2))
    monkeypatch.setitem(tuning.GRID, "sgd", (0.03, 0.3, 3.0))
    monkeypatch.setitem(tuning.GRID, "adam", (0.003, 0.03))


def run_of(folder: Path, loop: Loop, table: Mapping[str, Any] = TABLE) -> RemoteRun:
    folder.mkdir(exist_ok=True)
    return RemoteRun(folder, study_of(dict(table)), loop, lambda: sorted(loop.sides), QUICK)


def test_what_is_found_between_silos_is_what_a_simulation_finds(tmp_path: Path) -> None:
    table = TABLE | {"methods": {"fedavg": {}, "apple": {}, "separate": {}}}
    finished = run_of(tmp_path / "run", Loop(settle(tmp_path)), table).run("")
    asked = study_of(table)
    members = sorted(silos(), key=lambda silo: silo.name)
    federation = Assembly(members, build(asked.model, (5,), 3)[0], 3, asked.training, 1, "cpu", 1)
    found, tried = tuning.tuned(asked, federation)
    assert finished.study.own == found.own and not finished.study.auto
    written = pd.read_parquet(tmp_path / "run" / "tuning.parquet")
    pd.testing.assert_frame_equal(written, tried, rtol=1e-4)
    assert written.groupby("method").size().to_dict() == {"fedavg": 8, "apple": 8, "separate": 8}


@pytest.mark.parametrize("lie", [lambda loss: loss.flip(1) * 1e6, lambda loss: torch.full_like(loss, torch.inf)])
def test_one_silo_that_lies_does_not_choose_the_rate(
    lie: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLE | {"methods": {"separate": {}}}
    honest = run_of(tmp_path / "run", Loop(settle(tmp_path)), table).run("").study.own
    answer = SiloSide.answer

    def lying(self: SiloSide, asked: Request) -> Answer:
        given = answer(self, asked)
        if asked.kind != "measure" or self.name != "south" or asked.job is None or not asked.job.rates:
            return given
        return replace(given, body=encode_up(Scored(loss=lie(decode(Scored, given.body).loss))))

    monkeypatch.setattr(SiloSide, "answer", lying)
    (tmp_path / "other").mkdir()
    found = run_of(tmp_path / "other" / "run", Loop(settle(tmp_path / "other")), table).run("").study.own
    assert found == honest


def test_the_rounds_of_a_search_are_stated_before_and_in_the_summary(tmp_path: Path) -> None:
    assert extra_rounds(study_of(TABLE)) == {"fedavg": 4, "apple": 4}  # two with each optimiser
    assert announced(study_of(TABLE)) == [
        "Tuned before they train, with rounds of their own: 4 for fedavg, 4 for apple (--tune off: none)"
    ]
    given = TABLE | {"train": TABLE["train"] | {"optimizer": "adam"}}
    assert extra_rounds(study_of(given)) == {"fedavg": 1, "apple": 1}  # of two rates one is left after the first
    assert extra_rounds(study_of(TABLE, tune=False)) == {} and announced(study_of(TABLE, tune=False)) == []
    loop = Loop(settle(tmp_path))
    finished = run_of(tmp_path / "run", loop).run("")
    assert finished.summary["tuning"] == {"rounds": {"fedavg": 4, "apple": 4}}
    searching = [r for r in loop.asked if r.kind == "train" and r.job is not None and r.job.rates]
    assert len(searching) == 8 * len(NAMES)
    assert all(r.job is not None and r.job.tuning == 4 for r in loop.asked if r.kind == "train")
    told = json.loads((tmp_path / "run" / "progress.json").read_text())
    assert told["state"] == "finished"


def test_what_lost_sends_nothing_more(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    run_of(tmp_path / "run", loop, TABLE | {"methods": {"fedavg": {}}}).run("")
    jobs = [r.job for r in loop.asked if r.kind == "train" and r.silo == "north" and r.job is not None and r.job.rates]
    first = [each.going for each in jobs[:2]]
    assert first == [(0, 1, 2), (0, 1)]
    assert sum(len(each.going) for each in jobs[2:]) == 3


class Broken(Exception):
    """The coordinator's process ends here."""


class Breaking(Loop):
    """A transport under which the coordinator dies after so many exchanges."""

    def __init__(self, loop: Loop, after: int) -> None:
        super().__init__(loop.sides)
        self.left = after

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        found = super().exchange(requests, timeout)
        self.left -= 1
        if self.left < 0:
            raise Broken
        return found


def test_a_search_broken_after_any_exchange_goes_on_and_finds_the_same(tmp_path: Path) -> None:
    table = TABLE | {"methods": {"apple": {}}, "train": TABLE["train"] | {"rounds": 2}}  # type: ignore[operator]
    whole = run_of(tmp_path / "run", Loop(settle(tmp_path)), table).run("")
    for after in range(1, 10):
        home = tmp_path / str(after)
        loop = Loop(settle(home))
        with pytest.raises(Broken):
            run_of(home / "run", Breaking(loop, after), table).run("")
        again = run_of(home / "run", loop, table).run("")
        assert again.study.own == whole.study.own
        pd.testing.assert_frame_equal(
            pd.read_parquet(home / "run" / "tuning.parquet"), pd.read_parquet(tmp_path / "run" / "tuning.parquet")
        )
        trained = [r for r in loop.asked if r.kind == "train" and r.silo == "north"]
        assert len(trained) <= 6  # what was done before is not done again


def test_a_silo_that_is_away_for_a_while_breaks_nothing(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    loop.deaf = lambda r: r.silo == "south" and r.kind != "declare" and len(loop.asked) < 12
    assert run_of(tmp_path / "run", loop).run("").study.own.keys() == {"fedavg", "apple"}


def test_without_validation_data_values_are_fixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = settle(tmp_path)
    run = run_of(tmp_path / "run", Loop(sides))
    members = run.gathering.members()
    fixed = run.tuned({name: replace(each, sizes=(*each.sizes[:1], 0, 5)) for name, each in members.items()})
    assert fixed.own == {"apple": {"lr": 0.25}} and not fixed.auto
    assert "no silo has validation data" in capsys.readouterr().err


def test_a_method_with_privacy_is_not_searched_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = TABLE | {"methods": {"fedavg": {"privacy": {"noise": 1.0}}, "fedamp": {}}}
    assert extra_rounds(study_of(table)) == {"fedamp": 4}
    assert announced(study_of(table))[1].startswith("fedavg: not tuned")
    finished = run_of(tmp_path / "run", Loop(settle(tmp_path)), table).run("")
    assert set(finished.study.own) == {"fedamp"} and finished.study.training_of("fedavg").lr == 0.05
    assert "fedavg: not tuned" in capsys.readouterr().err


def test_rounds_that_are_auto_end_by_patience(tmp_path: Path) -> None:
    train = {"local_epochs": 1, "batch_size": 4, "whole_batches": True, "lr": "auto", "rounds": "auto", "patience": 1}
    table = TABLE | {"methods": {"fedavg": {}}, "train": train}
    finished = run_of(tmp_path / "run", Loop(settle(tmp_path)), table).run("")
    assert finished.study.training.rounds == 200
    assert finished.summary["methods"]["fedavg"]["rounds_run"] < 200


# What a silo allows


def searching(**changes: Any) -> Job:
    return replace(job("fedavg"), **{"rates": (0.1, 1.0), "going": (0, 1), "tuning": 4} | changes)


def asked_of(folder: Path, made: Job, kind: str = "train", **changes: Any) -> Answer:
    """What a silo answers to a request of the server that follows a job to the letter."""
    side = settle(folder)["north"]
    method, model, roster = made.built()
    from coterie.codec import encode
    from coterie.engine.method import Cohort

    down = method.send(method.open(roster, model), Cohort.everyone(roster, model, 0))
    ask = Request(kind, "north", "run", 0, cohort=3, job=made, body=encode(down.one(0)))  # type: ignore[arg-type]
    return side.answer(replace(ask, **changes))


def policy(folder: Path, text: str) -> None:
    (folder / "north" / "silo.toml").write_text(text)


@pytest.mark.parametrize(
    ("text", "changes", "refusal"),
    [
        ("rounds = 6", {}, "a run of 7 rounds, 4 of them of tuning; allowed: 6"),
        ("rounds = 7", {}, ""),
        ("rounds = 100", {"round": 4}, "round 5 of a search of 4 rounds"),
        ('fields = ["w", "loss"]', {}, ""),
        ('fields = ["loss"]', {}, "field 'w' may not leave"),
        ('methods = ["fedamp"]', {}, "method 'fedavg' is not among those allowed"),
        ("largest_upload = 100", {}, "an upload of"),
    ],
)
def test_a_policy_counts_the_rounds_and_fields_of_a_search(
    text: str, changes: dict[str, Any], refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loop.policy_text", lambda approve: f'approve = "{approve}"\n{text}')
    answer = asked_of(tmp_path, searching(), **changes)
    assert answer.refusal.startswith(refusal) and bool(refusal) == bool(answer.refusal)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rates": (0.1, float("nan"))}, "rates"),
        ({"rates": (0.1, float("inf"))}, "rates"),
        ({"rates": (0.1, -1.0)}, "rates"),
        ({"rates": (0.1, 0.0)}, "rates"),
        ({"rates": (0.1,) * 65, "going": (0,)}, "a search has 64 candidates at most"),
        ({"going": (0, 2)}, "going"),
        ({"going": (1, 0)}, "going"),
        ({"going": (0, 0)}, "going"),
        ({"going": ()}, "going"),
        ({"going": (-1, 0)}, "going"),
        ({"rates": (), "going": (0,)}, "going"),
        ({"tuning": 0}, "tuning"),
        ({"tuning": -4}, "tuning"),
        ({"tuning": 10**12}, "tuning"),
    ],
)
def test_candidates_that_cannot_be_are_refused_as_they_arrive(changes: dict[str, Any], reason: str) -> None:
    good = json.loads(Request("train", "north", "run", 0, cohort=3, job=searching()).head())
    good["job"] |= {key: list(each) if isinstance(each, tuple) else each for key, each in changes.items()}
    with pytest.raises(BadInput, match=reason) as error:
        request(json.dumps(good), b"")
    assert "\n" not in str(error.value)


def test_nothing_is_kept_of_candidates_and_none_is_noised(tmp_path: Path) -> None:
    for kind in ("keep", "adapt"):
        assert "a search" in asked_of(tmp_path / kind, searching(), kind, newcomer=kind == "adapt").refusal
        assert not (tmp_path / kind / "north" / "models").exists()
    private = replace(job("fedavg", privacy={"noise": 1.0}), rates=(0.1, 1.0), going=(0, 1), tuning=4)
    assert "privacy" in asked_of(tmp_path / "private", private).refusal


def test_a_method_that_cannot_run_is_refused_before_its_search(tmp_path: Path) -> None:
    loop = Loop(settle(tmp_path))
    with pytest.raises(BadInput, match=r"\[methods.mocha\] .*linear"):
        run_of(tmp_path / "run", loop, TABLE | {"methods": {"mocha": {}}}).run("")
    assert not any(r.kind == "train" for r in loop.asked)
