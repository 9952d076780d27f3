"""`lr = "auto"`: a search on validation data before the run, which then knows nothing of it."""

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import call
from own_silos import hospitals
from torch import nn

from coterie.conformance import CLASSES, small_mlp, small_silos
from coterie.data.silo import Part, Silo
from coterie.engine.training import Training
from coterie.methods import METHODS, make
from coterie.run import experiment, tuning
from coterie.run.assembly import Assembly
from coterie.runs.folder import Begun
from coterie.studies.own import OWN
from coterie.studies.study import check

TRAINING = Training(rounds=4, local_epochs=1, batch_size=8)
OWN_RUN = [
    "run",
    "--silos",
    "hospitals",
    "--label",
    "outcome",
    "--drop",
    "patient,cost",
    "--methods",
    "separate,fedamp",
]
BOTH = ("lr", "optimizer")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(tuning, "RUNGS", (1, 2, 3, 4))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path / "hospitals")


def assembly(training=TRAINING, silos=None):
    return Assembly(silos or small_silos(sizes=(30, 20, 9)), small_mlp, CLASSES, training, 1, "cpu", "all")


def search(method="fedavg", training=TRAINING, keys=BOTH):
    return tuning.search(assembly(training), make(method, {}), training, keys, lambda p: None)


def study(folder):
    return tomllib.loads(Path(folder, "study.toml").read_text("utf-8"))


def test_the_better_half_goes_on_and_the_best_of_the_last_is_taken():
    found, tried = search()
    assert tried.groupby("round").size().tolist() == [13, 7, 4, 2]
    for rung in (1, 2, 3, 4):
        so_far = tried[tried["round"] <= rung].groupby(["optimizer", "lr"])["score"].agg(["max", "count"])
        ranked = so_far[so_far["count"] == rung].sort_values("max", ascending=False)["max"]
        after = tried[tried["round"] == rung + 1]
        going_on = {*zip(after["optimizer"], after["lr"], strict=True)}
        assert going_on == {*ranked.index[: len(after)]}
    optimizer, lr = ranked.index[0]
    assert found == {"lr": lr, "optimizer": optimizer}


def test_nothing_trains_on_once_one_candidate_is_left():
    found, tried = search(training=replace(TRAINING, optimizer="adam"), keys=("lr",))
    assert tried.groupby("round").size().tolist() == [6, 3, 2]
    last = tried[tried["round"] == 3]["lr"]
    best = tried[tried["lr"].isin(last)].groupby("lr")["score"].max()
    assert found == {"lr": best.idxmax()}
    assert tuning.rungs_of(TRAINING, 1) == [1] and tuning.rungs_of(replace(TRAINING, rounds=2), 13) == [1, 2]


def test_every_candidates_rounds_are_counted():
    reports = []
    tuning.search(assembly(), make("fedavg", {}), TRAINING, BOTH, reports.append)
    counts = [report.tried for report in reports]
    assert counts == sorted(counts) and counts[-1] == 13 + 7 + 4 + 2
    assert {report.to_try for report in reports} == {counts[-1]}


@pytest.mark.parametrize("name", ["separate", "fedavg-ft", "fedamp", "apple", "fedem"])
def test_a_score_is_that_of_a_run_of_its_own(name):
    _, tried = search(name)
    for row in tried[tried["round"] == 3].itertuples():
        training = replace(TRAINING, optimizer=row.optimizer, lr=row.lr)
        results = pd.concat(assembly(training).train(make(name, {})).results)
        here = results[(results["round"] == row.round) & (results["split"] == "validation")]
        losses = here[here["measure"] == "loss"]["value"].tolist()
        assert row.score == pytest.approx(-tuning.middle(losses), rel=1e-3)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([], math.nan), ([1.0, math.nan], 1.0), ([1.0, 3.0], 2.0), ([-math.inf, 5.0, 1.0], 1.0), ([1e9, 1, 3, -1e9], 2.0)],
)
def test_no_silo_by_itself_chooses(scores, expected):
    assert tuning.middle(scores) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_searched_as_widely(name):
    if name != "mocha":  # which needs a linear model
        _, tried = search(name, replace(TRAINING, rounds=2))
        assert tried.groupby("round").size().tolist() == [13, 7]


def test_a_rate_that_diverges_loses(monkeypatch):
    monkeypatch.setitem(tuning.GRID, "sgd", (0.1, 1e30))
    found, tried = search(keys=("lr",))
    assert found == {"lr": 0.1}
    assert tried[tried["lr"] == 1e30]["score"].max() < tried[tried["lr"] == 0.1]["score"].min()


def test_statistics_that_stay_local_are_searched_with():
    def build():
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))

    training = replace(TRAINING, rounds=1, buffers="local", whole_batches=True)
    federation = Assembly(small_silos(sizes=(30, 20, 16)), build, CLASSES, training, 1, "cpu", "all")
    found, _ = tuning.search(federation, make("fedavg", {}), training, BOTH, lambda p: None)
    assert set(found) == set(BOTH)


def test_an_optimizer_that_was_given_is_kept_and_momentum_goes_with_sgd():
    _, tried = search(training=replace(TRAINING, optimizer="adam", rounds=1), keys=("lr",))
    assert set(tried["optimizer"]) == {"adam"} and tuple(tried["lr"]) == tuning.GRID["adam"]
    _, tried = search(training=replace(TRAINING, momentum=0.5, rounds=1))
    assert set(tried["optimizer"]) == {"sgd"}


def test_without_validation_data_values_are_fixed(capsys):
    nothing = Part(np.zeros((0, 5), np.float32), np.zeros(0, np.int64))
    silos = [replace(silo, validation=nothing) for silo in small_silos()]
    table = {"train": OWN["train"], "methods": {"separate": {}, "apple": {}}}
    found, tried = tuning.tuned(check(table), assembly(silos=silos))
    assert (found.training.rounds, found.training.patience, found.own, len(tried)) == (
        30,
        0,
        {"apple": {"lr": 0.25}},
        0,
    )
    assert "no silo has validation data" in capsys.readouterr().err


def test_what_was_found_is_written_and_the_study_runs_again_without_a_search(here):
    assert call(*OWN_RUN, "--set", "train.rounds=auto", "--set", "train.patience=2", "--out", "a", "--quiet") == 0
    told, tried = study("a"), pd.read_parquet("a/tuning.parquet")
    assert list(tried) == ["method", "optimizer", "lr", "weight_decay", "round", "score"]
    assert set(tried["method"]) == {"separate", "fedamp"}
    assert (told["train"]["rounds"], told["train"]["patience"]) == (200, 2)
    for name in ("separate", "fedamp"):
        last = tried[(tried["method"] == name) & (tried["round"] == 4)][["lr", "optimizer", "weight_decay"]]
        assert told["methods"][name]["train"] in last.to_dict("records")
    assert call("run", "a/study.toml", "--out", "b", "--quiet") == 0
    assert not Path("b/tuning.parquet").exists()
    results = pd.read_parquet("a/results.parquet")
    pd.testing.assert_frame_equal(results, pd.read_parquet("b/results.parquet"))
    summary = json.loads(Path("a/summary.json").read_text())["methods"]
    for name, rounds in results.groupby("method")["round"].max().items():
        assert summary[name]["rounds_run"] == rounds == summary[name]["picked_round"] + 2
        assert summary[name]["still_improving"] is False


def test_a_rate_at_an_end_of_what_was_tried_is_in_the_summary_and_said(here, monkeypatch, capsys):
    monkeypatch.setattr(tuning, "GRID", {"sgd": (1e-6, 0.1), "adam": (1e-8,)})
    assert call(*OWN_RUN, "--rounds", 2, "--out", "r") == 0
    summary = json.loads(Path("r/summary.json").read_text("utf-8"))["methods"]
    for name in ("separate", "fedamp"):
        assert summary[name]["rate_at_edge"] == {"optimizer": "sgd", "lr": 0.1, "end": "largest"}
    said = "separate, fedamp: of sgd the search took the largest rate that it tries, 0.1"
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in Path("r/report.html").read_text("utf-8")
    monkeypatch.setattr(tuning, "GRID", {"sgd": (1e-6, 0.1, 1e9), "adam": (1e-8,)})
    assert call(*OWN_RUN, "--rounds", 2, "--out", "s", "--quiet") == 0
    assert not any(
        "rate_at_edge" in each for each in json.loads(Path("s/summary.json").read_text())["methods"].values()
    )


def test_a_stack_trains_its_members_as_they_were_tuned(here):
    of = "methods.stack.of=['separate', 'fedamp']"
    run = [*OWN_RUN[:-1], "separate,fedamp,stack", "--set", of, "--rounds", "3", "--out", "a", "--quiet"]
    assert call(*run) == 0
    told = study("a")["methods"]
    assert set(pd.read_parquet("a/tuning.parquet")["method"]) == {"separate", "fedamp"}
    assert told["stack"]["of"] == [{"method": name, "train": told[name]["train"]} for name in ("separate", "fedamp")]


def test_a_method_that_ends_at_its_most_rounds_with_the_best_among_the_last_was_improving(here):
    assert call(*OWN_RUN, "--set", "train.lr=0.003", "--rounds", 2, "--out", "a", "--quiet") == 0
    assert not Path("a/tuning.parquet").exists()
    summary = json.loads(Path("a/summary.json").read_text())["methods"]
    assert [(each["rounds_run"], each["still_improving"]) for each in summary.values()] == [(2, True), (2, True)]


@pytest.mark.slow
def test_a_run_killed_in_its_search_or_after_it_ends_as_if_it_had_not_been(here, tmp_path, monkeypatch):
    begun, rehearse = [], experiment.rehearse
    monkeypatch.setattr(experiment, "rehearse", lambda *given: begun.append(Begun.read(Path("a"))) or rehearse(*given))
    run_into = experiment.run_into

    def noted(study, out, *given):
        begun.append(Begun(study.as_toml(), ""))
        return run_into(study, out, *given)

    monkeypatch.setattr(experiment, "run_into", noted)
    assert call(*OWN_RUN, "--rounds", 2, "--out", "a", "--quiet") == 0
    searching, training = (tomllib.loads(each.study) for each in begun)
    assert searching["train"]["lr"] == "auto" and "train" not in searching["methods"]["fedamp"]
    assert training["train"]["lr"] == 0.05 and training["methods"] == study("a")["methods"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "RUNGS", (1, 2, 3, 4))
    for name, each in zip(("searching", "training"), begun, strict=True):
        Path(name).mkdir()
        each.write(Path(name))
        assert call("run", "--resume", name, "--quiet") == 0
        assert study(name)["methods"] == study("a")["methods"]
        pd.testing.assert_frame_equal(pd.read_parquet("a/results.parquet"), pd.read_parquet(f"{name}/results.parquet"))


def test_tuning_can_be_turned_off(here, capfd):
    assert call(*OWN_RUN, "--tune", "off", "--rounds", 1, "--out", "a", "--quiet") == 0
    told = study("a")
    assert (told["train"]["lr"], told["train"]["optimizer"]) == (0.05, "sgd")
    assert "train" not in told["methods"]["fedamp"] and not Path("a/tuning.parquet").exists()
    assert call(*OWN_RUN, "--tune", "maybe") == 2
    assert "--tune maybe: expected auto or off" in capfd.readouterr().err


def test_the_uploads_of_a_private_methods_search_count(here, capsys):
    words = ["--methods", "fedavg", "--rounds", 2, "--set", "methods.fedavg.privacy.noise=8", "--out", "out"]
    assert call(*OWN_RUN[:-2], *words) == 0
    told = json.loads(Path("out/summary.json").read_text("utf-8"))["methods"]["fedavg"]["privacy"]
    candidates = pd.read_parquet("out/tuning.parquet").groupby(["optimizer", "lr"])["round"].max()
    assert told["in_search"] == candidates.sum() == 13 + 7 and told["uploads"] == 20 + 2
    assert "20 of them in the search for its learning rate" in " ".join(capsys.readouterr().out.split())


def wide(seed: int) -> list[Silo]:
    """Four silos of 60 rows and 500 columns, of which 15 matter, and many fresh rows to test on."""
    rng = np.random.default_rng(seed)
    weights = np.zeros(500)
    weights[:15] = rng.normal(size=15)

    def part(rows: int) -> Part:
        x = rng.normal(size=(rows, 500))
        ill = rng.random(rows) < 1 / (1 + np.exp(-x @ weights))
        return Part(x.astype(np.float32), ill.astype(np.int64))

    return [Silo(f"silo-{i}", part(45), part(15), part(500)) for i in range(4)]


def test_where_columns_outnumber_rows_decay_makes_better_models(monkeypatch):
    monkeypatch.setattr(tuning, "RUNGS", (5, 10, 20))
    monkeypatch.setattr(tuning, "GRID", {"sgd": (0.01, 0.1, 1.0)})
    losses = dict[tuple[float, ...], list[float]]()
    training = Training(rounds=20, local_epochs=2, batch_size=16)
    for seed in range(2):
        federation = Assembly(wide(seed), lambda: nn.Linear(500, 2), 2, training, seed, "cpu", "all")
        for decays in ((0.0,), tuning.DECAYS):
            monkeypatch.setattr(tuning, "DECAYS", decays)
            method = make("fedavg", {})
            keys = ("lr", "weight_decay")
            found, tried = tuning.search(federation, method, training, keys, lambda p: None)
            assert set(tried["weight_decay"]) == {*decays} and set(found) == {*keys}
            outcome = federation.train(method, training=replace(training, **found))
            table = pd.concat(outcome.results).query("split == 'test' and measure == 'loss'")
            losses.setdefault(decays, []).append(table[table["round"] == outcome.picked.round]["value"].mean())
    without, with_decay = (float(np.mean(each)) for each in losses.values())
    assert with_decay < without


def test_few_columns_are_searched_without_decay():
    federation = Assembly(small_silos(3), small_mlp, CLASSES, TRAINING, 0, "cpu", "all")
    method, keys = make("fedavg", {}), ("lr", "weight_decay")
    found, tried = tuning.search(federation, method, TRAINING, keys, lambda p: None)
    assert set(tried["weight_decay"]) == {0.0} and found["weight_decay"] == 0.0
