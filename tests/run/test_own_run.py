"""`coterie run --silos`: a folder of files becomes a trained federation with one command."""

import hashlib
import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import call
from own_silos import NAMES, hospital, hospitals

from coterie.data import catalog
from coterie.runs.folder import Begun

QUICK = ("--methods", "separate,fedamp", "--rounds", 2)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path / "hospitals")


def study(folder):
    return tomllib.loads(Path(folder, "study.toml").read_text("utf-8"))


def summary(folder):
    return json.loads(Path(folder, "summary.json").read_text("utf-8"))


def test_five_tables_become_a_federation_and_the_study_runs_again_alike(capfd):
    words = ["run", "--silos", "hospitals", "--label", "outcome", "--drop", "patient,cost", *QUICK]
    assert call(*words, "--out", "a") == 0
    out = capfd.readouterr().out
    assert "lacks class severe" in out and "always the same or empty: left out" in out and "fedamp" in out
    results = pd.read_parquet("a/results.parquet")
    assert set(results["silo"]) == set(NAMES) and set(results["measure"]) >= {"accuracy", "loss"}
    told = study("a")
    assert told["name"] == "hospitals" and told["model"]["name"] in ("linear", "mlp")
    assert told["data"]["drop"] == ["patient", "cost"] and told["data"]["name"] == "own"
    said = summary("a")["data"]
    assert {"column": "outcome", "silo": "valley", "what": "lacks class severe", "stops": False} in said["differences"]
    assert call("run", "a/study.toml", "--out", "b", "--quiet") == 0
    pd.testing.assert_frame_equal(results, pd.read_parquet("b/results.parquet"))
    made = {silo: json.loads(Path("a/deploy", silo, "card.json").read_text("utf-8")) for silo in NAMES}
    for silo, card in made.items():  # the same study gives the same file, and it is that of the method taken
        model = Path("b/deploy", silo, "model.safetensors").read_bytes()
        assert hashlib.sha256(model).hexdigest() == card["sha256"]
        assert card["method"] == summary("a")["verdict"]["chosen"]
        assert f"`{card['sha256']}`" in Path("a/deploy", silo, "card.md").read_text("utf-8")
    today = summary("a")["baselines"]
    assert set(today) >= {"majority", "boosted trees", "logistic regression, pooled"}
    assert summary("a")["verdict"]["baseline"]["name"] in today


def test_regression_reports_errors_in_the_labels_unit(capfd):
    words = ["run", "--silos", "hospitals", "--label", "cost", "--drop", "patient,outcome", "--methods", "separate"]
    assert call(*words, "--rounds", 25, "--seeds", "0,1", "--out", "a") == 0
    assert "rmse" in capfd.readouterr().out
    results = pd.read_parquet("a/results.parquet")
    last = results[(results["round"] == 25) & (results["split"] == "test")]
    mean = last.groupby(["seed", "measure"])["value"].mean().unstack()
    spread = pd.concat(hospital(i) for i in range(5))["cost"].std()
    assert (mean["rmse"] < 0.6 * spread).all() and (mean["rmse"] > 1).all() and (mean["mae"] < mean["rmse"]).all()
    # The loss is that of the standardised target, whose unit each seed's own training rows give.
    units = {seed: catalog.load("own", study("a")["data"], seed).schemas["north"].unit for seed in (0, 1)}
    assert units[0] != units[1]
    for (_, seed), rows in last.groupby(["silo", "seed"]):
        by = rows.set_index("measure")["value"]
        assert by["rmse"] == pytest.approx(np.sqrt(by["loss"]) * units[seed], rel=1e-5)
    assert summary("a")["methods"]["separate"]["last_rmse"] == pytest.approx(mean["rmse"].mean())


def test_a_learning_rate_goes_by_the_method_whatever_its_label():
    words = ["run", "--silos", "hospitals", "--label", "outcome", "--drop", "patient,cost", "--rounds", 1, "--quiet"]
    words += ["--set", "methods.mine.method=fedem", "--set", "methods.fedem.train.local_epochs=1"]
    words += ["--set", "methods.slow.method=apple", "--set", "methods.slow.train.lr=0.01"]
    assert call(*words, "--methods", "mine,fedem,slow,fedavg", "--out", "a") == 0
    told = {label: table.get("train") for label, table in study("a")["methods"].items()}
    rate = {"lr": 0.15}
    assert told == {"mine": rate, "fedem": {"local_epochs": 1} | rate, "slow": {"lr": 0.01}, "fedavg": None}


def test_a_model_of_ones_own_is_named_on_the_command_line(tmp_path, capfd):
    (tmp_path / "mynet_by_path.py").write_text(
        "from torch import nn\n"
        "def net(inputs, outputs):\n"
        "    hidden = [nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1)]\n"
        "    return nn.Sequential(*hidden, nn.Linear(8, outputs))\n"
    )
    words = ["run", "--silos", "hospitals", "--label", "outcome", "--drop", "patient,cost", *QUICK, "--quiet"]
    assert call(*words, "--model", "mynet_by_path:net", "--out", "a") == 0
    assert study("a")["model"] == {"name": "mynet_by_path:net"}
    assert call("run", "a/study.toml", "--out", "b") == 2
    assert "a study runs no code; give --model mynet_by_path:net" in capfd.readouterr().err
    assert call("run", "a/study.toml", "--model", "mynet_by_path:net", "--out", "b", "--quiet") == 0
    a, b = (pd.read_parquet(f"{x}/results.parquet") for x in "ab")
    pd.testing.assert_frame_equal(a, b)
    (tmp_path / "stopped").mkdir()
    Begun(Path("a/study.toml").read_text("utf-8"), "").write(tmp_path / "stopped")
    assert call("run", "--resume", "stopped") == 2
    assert "a study runs no code; give --model mynet_by_path:net" in capfd.readouterr().err
    assert call("run", "--resume", "stopped", "--model", "mynet_by_path:net", "--quiet") == 0
    pd.testing.assert_frame_equal(a, pd.read_parquet("stopped/results.parquet"))


def test_silos_that_differ_are_told_in_a_table_above_one_line(tmp_path, capfd):
    hospital(1).drop(columns="age").to_csv("hospitals/north.csv", index=False)
    assert call("run", "--silos", "hospitals", "--label", "outcome", "--drop", "patient,cost", "--out", "a") == 2
    lines = capfd.readouterr().err.splitlines()
    assert any(line.split() == ["age", "north", "missing"] for line in lines)
    assert lines[-1].startswith("coterie: silos differ: 'age' of north: missing")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--label", "outcome"], "go with --silos FOLDER"),
        (["--silos", "hospitals"], "say which column to predict with --label COLUMN"),
        (["--silos", "nowhere", "--label", "y"], "nowhere: no such folder"),
        (["--silos", "hospitals", "--label", "nope"], "has no column 'nope' to predict"),
        (["--silos", "hospitals", "--label", "outcome", "--drop", "pateint"], "did you mean 'patient'?"),
        (["--silos", "hospitals", "--label", "outcome", "--task", "guess"], "[data] task: unknown value 'guess'"),
        (["--silos", "hospitals", "--label", "outcome", "--model", "mlq"], "unknown model 'mlq'; did you mean 'mlp'?"),
        (["--silos", "hospitals", "--label", "outcome", "--set", "data.split=iid"], "own comes silo by silo"),
    ],
)
def test_mistakes_are_one_line(words, said, capfd):
    assert call("run", *words, "--out", "a") == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1
