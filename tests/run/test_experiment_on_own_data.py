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
from coterie.personal.file import load_model
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
    assert {
        "column": "outcome",
        "silo": "valley",
        "what": "lacks class severe",
        "stops": False,
        "flatters": False,
    } in said["differences"]
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
    verdict = summary("a")["verdict"]  # what users' scripts rely on
    assert verdict["baseline"]["name"] in today
    assert verdict["chosen"] in verdict["methods"] and verdict["measure"] == "accuracy"
    assert {each["silo"] for each in verdict["silos"]} == set(NAMES)
    for each in verdict["silos"]:
        assert {"outcome", "gain", "low", "high", "n"} <= set(each) and each["low"] <= each["gain"] <= each["high"]
        assert each["outcome"] in ("better", "worse", "equivalent", "undecided") and each["n"] > 0


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
    words += ["--tune", "off", "--set", "methods.mine.method=fedem", "--set", "methods.fedem.train.local_epochs=1"]
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


def visits(folder: Path, **columns) -> Path:
    """Two silos of patients that come five times each."""
    folder.mkdir()
    for place, name in enumerate(("north", "south")):
        rng = np.random.default_rng(place)
        who = rng.permutation(np.repeat(np.arange(20), 5))
        body, ill = rng.normal(size=(20, 2)), rng.random(20) < 0.5
        frame = pd.DataFrame(body[who] + 0.01 * rng.normal(size=(100, 2)), columns=["a", "b"]).assign(patient=who)
        frame = frame.assign(day=np.arange(100), ill=np.where(ill[who], "yes", "no"), **columns)
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def test_splits_are_written_row_by_row():
    words = ["run", "--silos", visits(Path("visits")), "--label", "ill", "--group", "patient", "--drop", "day", *QUICK]
    assert call(*words, "--repeats", 2, "--quiet", "--out", "a") == 0
    assert study("a")["seeds"] == [0, 1] and study("a")["data"]["group"] == "patient"
    splits = pd.read_parquet("a/splits.parquet")
    assert list(splits.columns) == ["seed", "silo", "row", "split"]
    for (_, silo), part in splits.groupby(["seed", "silo"]):
        assert sorted(part["row"]) == list(range(1, 101))
        patient = pd.read_csv(f"visits/{silo}.csv")["patient"].iloc[part["row"] - 1].to_numpy()
        assert (part.assign(patient=patient).groupby("patient")["split"].nunique() == 1).all()
    assert not splits[splits["seed"] == 0]["split"].reset_index(drop=True).equals(splits[splits["seed"] == 1]["split"])
    tested = splits[splits["split"] == "test"].groupby(["seed", "silo"]).size()
    given = pd.read_parquet("a/predictions.parquet").query("split == 'test'")
    predicted = given.groupby(["method", "seed", "silo"]).size()
    rows = given.query("method == 'fedamp'")[["seed", "silo", "row"]]
    assert len(rows.merge(splits[splits["split"] == "test"])) == len(rows)
    assert all((predicted[method] == tested).all() for method in ("separate", "fedamp"))
    # Test rows and samples are in one order.
    rows = splits.query("seed == 0 and silo == 'north' and split == 'test'")["row"]
    raw = pd.read_csv("visits/north.csv").iloc[rows - 1]
    model = load_model("a/models/separate/north.safetensors")
    right = np.array(model.classes)[model.predict_proba(raw).argmax(1)] == raw["ill"]
    kept = given.query("method == 'separate' and seed == 0 and silo == 'north'")
    assert 0 < right.sum() < len(right) and (kept["value"].to_numpy() == right).all()


def test_seeds_that_cannot_change_the_test_rows_are_warned_of(capfd):
    words = ["run", "--silos", visits(Path("visits")), "--label", "ill", "--drop", "patient", *QUICK, "--quiet"]
    assert call(*words, "--time", "day", "--repeats", 2, "--out", "a") == 0
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "2 silos: north, south: the same test rows with every seed" in err
    assert call(*words, "--drop", "patient,day", "--repeats", 2, "--out", "b") == 0
    assert call(*words, "--time", "day", "--out", "c") == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--repeats", 3, "--seeds", "0,1"], "--repeats and --seeds both set the seeds; give one of them"),
        (["--repeats", 0], "--repeats 0: give 1 or more"),
        (["--silos", "hospitals", "--label", "outcome", "--group", "pateint"], "did you mean 'patient'?"),
        (["--group", "patient"], "go with --silos FOLDER"),
    ],
)
def test_mistakes_about_splits_are_one_line(words, said, capfd):
    assert call("run", *words, "--out", "a") == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1


def test_silos_whose_names_make_one_file_name_are_deployed_apart():
    Path("wards").mkdir()
    for name, source in (("Ward 1", "north"), ("Ward_1", "coast"), ("east", "east")):
        Path("wards", f"{name}.csv").write_bytes(Path("hospitals", f"{source}.csv").read_bytes())
    words = ["run", "--silos", "wards", "--label", "outcome", "--drop", "patient,cost", *QUICK, "--quiet"]
    assert call(*words, "--out", "a") == 0
    cards = [json.loads(path.read_text("utf-8")) for path in Path("a/deploy").glob("*/card.json")]
    assert sorted(card["silo"] for card in cards) == ["Ward 1", "Ward_1", "east"]


def test_a_run_whose_samples_lie_in_files_is_the_run_in_memory(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "cache"))
    words = ["run", "--silos", "hospitals", "--label", "outcome", "--drop", "patient,cost", *QUICK]
    words += ["--tune", "off", "--quiet"]
    assert call(*words, "--out", "memory") == 0
    assert call(*words, "--set", "engine.in_memory=0", "--out", "files") == 0
    assert (tmp_path / "cache" / "samples").is_dir()
    for name in ("results.parquet", "predictions.parquet"):
        assert Path("memory", name).read_bytes() == Path("files", name).read_bytes()
