"""A study that has run: its numbers, and the folder they are in."""

import json
import math
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from command import SMALL, call, small
from torch import nn

from coterie.data import catalog
from coterie.engine.simulate import Simulator
from coterie.measure.measures import taken
from coterie.measure.metrics import summarize
from coterie.measure.predictions import FIRST, RAW
from coterie.run import experiment
from coterie.run.finished import _finite
from coterie.runs.read import read_run
from coterie.studies.study import check, loads, override, read

KEYS = ["method", "seed", "round", "silo", "split", "measure"]


def ran(*assignments, methods=None, study=None):
    """The small study, or another, run in this process."""
    table = read(study) if study else tomllib.loads(SMALL)
    prepared = experiment.prepare_all(check(override(table, assignments), methods))
    with tempfile.TemporaryDirectory() as folder:
        return experiment.run(*prepared, Path(folder), lambda *_: None)


def values(results, **wanted):
    """The values of some rows, by what is left to tell them apart."""
    for key, value in wanted.items():
        results = results[results[key] == value]
    return results.set_index([key for key in KEYS if key not in wanted])["value"].sort_index()


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    assert call("run", small(folder), "--out", folder / "out", "--quiet") == 0
    return folder / "out"


def test_the_folder_holds_what_it_should_and_nothing_else(out):
    silos = [f"silo-{i:02d}" for i in range(6)]
    models = {f"models/{method}/{silo}.safetensors" for method in ("separate", "fedamp") for silo in silos}
    files = {"study.toml", "results.parquet", "summary.json", "report.html", "collaboration/fedamp.npz", *models}
    files |= {"predictions.parquet", "labels.parquet"}
    files |= {f"deploy/{silo}/{name}" for silo in silos for name in ("model.safetensors", "card.md", "card.json")}
    assert {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} == files


def test_the_results_are_long(out):
    results = pd.read_parquet(out / "results.parquet")
    assert list(results.columns) == [*KEYS, "value"]
    assert results["value"].dtype == np.float64 and results["seed"].dtype == np.int64
    assert not results.duplicated(KEYS).any()
    assert set(results["round"]) == {0, 1, 2}
    assert set(results["split"]) == {"train", "validation", "test"}
    assert set(results.loc[results["method"] == "separate", "measure"]) == {"accuracy", "loss"}
    assert set(results.loc[results["method"] == "fedamp", "measure"]) == {
        "accuracy", "loss", "accuracy_cloud", "loss_cloud",
    }  # fmt: skip
    assert len(results) == (2 + 4) * 3 * 3 * 6  # measures, rounds, splits, silos
    accuracy = results.loc[results["measure"].str.startswith("accuracy"), "value"]
    assert accuracy.between(0, 1).all()


@pytest.mark.parametrize(("optimizer", "warned"), [("adam", True), ("sgd", False)])
def test_a_method_for_plain_steps_is_warned_of_with_adam(tmp_path, capsys, optimizer, warned):
    words = ("--methods", "scaffold,fedavg", "--rounds", "1", "--set", f"train.optimizer={optimizer}", "--quiet")
    assert call("run", small(tmp_path), *words, "--out", tmp_path / "out") == 0
    assert ("[methods.scaffold] is made for plain gradient steps" in capsys.readouterr().err) == warned


def test_sizes_and_labels_of_every_seed_are_kept(tmp_path):
    assert call("run", small(tmp_path), "--out", tmp_path / "out", "--quiet", "--seeds", "3,5", "--rounds", "1") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
    labels = pd.read_parquet(tmp_path / "out" / "labels.parquet")
    assert list(summary["samples"]) == ["3", "5"] and list(labels["seed"].unique()) == [3, 5]
    for seed in (3, 5):
        data = catalog.load("digits", check(loads(SMALL, "small")).data, seed)
        sizes = {s.name: {part: len(getattr(s, part)) for part in ("train", "validation", "test")} for s in data.silos}
        assert summary["samples"][str(seed)] == sizes
        of_seed = labels[labels["seed"] == seed]
        assert of_seed.groupby("silo")["count"].sum().to_dict() == {name: n["train"] for name, n in sizes.items()}
    shown = read_run(tmp_path / "out").labels
    assert shown is not None and set(shown["seed"]) == {3}  # what the report draws


def test_the_summary_has_the_schema_it_promises(out):
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    keys = {
        "command",
        "study",
        "device",
        "versions",
        "commit",
        "seconds",
        "verdict",
        "significance",
        "samples",
        "methods",
    }
    assert set(summary) == keys
    assert summary["command"].startswith("coterie run ") and summary["seconds"] > 0
    assert summary["study"] == "small" and summary["device"].startswith("cpu")
    assert {"coterie", "python", "torch", "numpy"} <= set(summary["versions"])
    scalars = {
        "val_picked", "picked_round", "last", "bmta", "best_round", "weighted", "bottom_decile",
        "bytes_up", "bytes_down", "train_seconds", "missing",
    }  # fmt: skip
    separate, fedamp = summary["methods"]["separate"], summary["methods"]["fedamp"]
    assert set(separate) == {
        *scalars,
        "rounds_run",
        "still_improving",
        "per_silo",
        "per_silo_picked",
        "per_seed",
        "rejected",
        "measures",
        "temperatures",
    }
    of_the_server = {"bmta_cloud", "last_cloud", "per_silo_cloud"}
    assert set(fedamp) == {*separate, *of_the_server, "within_group", "within_group_least"}
    assert 0 <= fedamp["within_group_least"] <= fedamp["within_group"] <= 100
    assert set(separate["per_seed"][0]) == {"seed", *scalars}
    results = pd.read_parquet(out / "results.parquet")
    for name, scores in summary["methods"].items():
        accuracy = 100 * values(results, method=name, seed=0, split="test", measure="accuracy").unstack("silo")
        assert scores["bmta"] == pytest.approx(accuracy.loc[1:].mean(axis=1).max())
        assert scores["last"] == pytest.approx(accuracy.loc[2].mean())
        assert scores["per_silo"] == pytest.approx(accuracy.loc[scores["best_round"]].to_dict())
        assert scores["per_silo_picked"] == pytest.approx(accuracy.loc[scores["picked_round"]].to_dict())
        assert scores["val_picked"] == pytest.approx(accuracy.loc[scores["picked_round"]].mean())
    assert (separate["bytes_up"], separate["bytes_down"]) == (0, 0)
    assert fedamp["bytes_up"] == fedamp["bytes_down"] > 0


@pytest.fixture(scope="module", params=["ten classes", "two classes", "numbers"])
def measured(out, request, tmp_path_factory):
    """The folder of a run; but of ten classes it is one of three seeds."""
    if request.param == "ten classes":
        return out
    folder = tmp_path_factory.mktemp("own")
    for place, name in enumerate(("north", "south", "west")):
        rng = np.random.default_rng(place)
        frame = pd.DataFrame(rng.normal(size=(90, 3)), columns=list("abc"))
        score = frame["a"] - frame["b"] + rng.normal(size=90)
        label = np.where(score > 1, "A yes", "no") if request.param == "two classes" else 40 + 10 * score
        (folder / "data").mkdir(exist_ok=True)
        frame.assign(label=label).to_csv(folder / "data" / f"{name}.csv", index=False)
    words = ["--silos", folder / "data", "--label", "label", "--seeds", "0,1,2", "--tune", "off", "--quiet"]
    assert call("run", *words, "--methods", "separate,fedavg", "--rounds", 4, "--out", folder / "out") == 0
    return folder / "out"


def test_the_predictions_recompute_every_measure_of_the_summary(measured):
    summary, study = json.loads((measured / "summary.json").read_text("utf-8")), read_run(measured).study
    predictions = pd.read_parquet(measured / "predictions.parquet")
    names = [column for column in predictions if column.startswith("probability_")]
    if len(names) == 2 and study["measure"]["positive"] == 0:
        names = names[::-1]
    places = {name.removeprefix("probability_"): place for place, name in enumerate(names)}

    def mean(values):  # None where no silo has one
        defined = [value for value in values if not np.isnan(value)]
        return pytest.approx(np.mean(defined), rel=1e-4) if defined else None

    def by_all(rows):
        if not names:
            return taken(rows["label"].to_numpy(), rows["prediction"].to_numpy(), 0)
        labels, p = rows["label"].map(places).to_numpy(), rows[names].to_numpy()
        cuts = rows["threshold"].to_numpy() if len(names) == 2 else 0.5
        raw = p.astype(float) ** rows[["temperature"]].to_numpy()
        before = taken(labels, raw / raw.sum(1, keepdims=True), len(names))
        return taken(labels, p, len(names), cuts) | {f"{name}_raw": before[name] for name in RAW}

    for method, scores in (summary["methods"] | summary.get("baselines", {})).items():
        mine = predictions[predictions["method"] == method]
        found = {}
        for (split, silo, _), rows in mine.groupby(["split", "silo", "seed"], sort=False):
            for name, value in by_all(rows).items():
                found.setdefault((name, split), {}).setdefault(silo, []).append(value)
        test = mine[mine["split"] == "test"]
        pooled = pd.DataFrame([by_all(rows) for _, rows in test.groupby("seed")]).mean().to_dict()
        for name, each in scores["measures"].items():
            by_silo = {silo: np.mean(values) for silo, values in found[name, "test"].items()}
            known = {silo: value for silo, value in by_silo.items() if not np.isnan(value)}
            assert each["silos"] == pytest.approx(known, rel=1e-4)
            assert each["test"] == mean(by_silo.values())
            assert each["validation"] == mean(np.mean(values) for values in found[name, "validation"].values())
            assert each["pooled"] == mean([pooled[name]])
        if names and method in summary["methods"]:
            assert {f"{name}_raw" for name in RAW} <= set(scores["measures"])
            loss = scores["measures"]
            assert loss["log_loss"]["validation"] < loss["log_loss_raw"]["validation"]


def test_collaboration_is_kept_of_every_round(out):
    with np.load(out / "collaboration" / "fedamp.npz", allow_pickle=False) as kept:
        assert kept["collaboration"].shape == (3, 6, 6)
        assert np.allclose(kept["collaboration"].sum(axis=2), 1)
        assert list(kept["silos"]) == [f"silo-{i:02d}" for i in range(6)]
        assert list(kept["groups"]) == [0, 0, 1, 1, 2, 2]
        assert list(kept["rounds"]) == [0, 1, 2]


def test_the_report_is_about_this_study(out):
    page = (out / "report.html").read_text("utf-8")
    assert "<h1>small</h1>" in page and "coterie run" in page and "fedamp" in page


def test_a_model_in_plain_pytorch_gives_the_reported_accuracy(out):
    results = pd.read_parquet(out / "results.parquet")
    study = tomllib.loads((out / "study.toml").read_text("utf-8"))
    silos = {silo.name: silo.test for silo in catalog.load("digits", study["data"], seed=0).silos}
    for method in ("separate", "fedamp"):
        reported = values(results, method=method, seed=0, round=2, split="test", measure="accuracy")
        for name, test in silos.items():
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
            model.load_state_dict(safetensors.torch.load_file(out / "models" / method / f"{name}.safetensors"))
            with torch.no_grad():
                hits = model(torch.from_numpy(test.x)).argmax(1).numpy() == test.y
            assert hits.mean() == pytest.approx(reported[name], abs=1e-6)


def test_the_same_command_twice_gives_the_same_bytes(out, tmp_path):
    assert call("run", small(tmp_path), "--out", tmp_path / "again", "--quiet") == 0
    for name in ("results.parquet", "study.toml", "collaboration/fedamp.npz"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()
    one, two = (
        safetensors.torch.load_file(folder / "models" / "fedamp" / "silo-03.safetensors")
        for folder in (out, tmp_path / "again")
    )
    assert all(torch.equal(one[name], two[name]) for name in one | two)


def test_the_study_written_back_runs_to_the_same_results(out, tmp_path):
    assert call("run", out / "study.toml", "--out", tmp_path / "again", "--quiet") == 0
    for name in ("results.parquet", "study.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()


def test_one_row_at_a_time_and_all_at_once_agree():
    methods = ["separate", "fedavg", "fedprox", "fedamp", "heurfedamp"]
    one, every = (
        values(ran("train.rounds=1", f"engine.rows={rows}", methods=methods, study="digits").results, round=1)
        for rows in (1, "all")
    )
    losses = one.index.get_level_values("measure").str.startswith("loss")
    assert len(one[losses]) == 7 * 3 * 20  # two of the methods have a cloud model; splits; silos
    assert (one[losses] - every[losses]).abs().max() < 1e-4


def test_fedamp_without_others_and_without_pull_is_separate():
    results = ran("methods.fedamp.tau=0", "methods.fedamp.beta=inf").results
    own = results[results["measure"].isin(["accuracy", "loss"])]
    alone, amp = (values(own, method=method) for method in ("separate", "fedamp"))
    assert np.allclose(alone, amp, rtol=0, atol=1e-6)
    assert not np.allclose(
        alone, values(ran().results[lambda r: r["measure"].isin(["accuracy", "loss"])], method="fedamp")
    )


def test_losing_replies_still_trains():
    methods = ["fedavg", "fedamp"]
    whole, lossy = (ran(f"train.drop={drop}", "train.rounds=4", methods=methods) for drop in (0, 0.3))
    for method in methods:
        losses = values(lossy.results, method=method, seed=0, split="train", measure="loss").groupby("round").mean()
        assert losses.iloc[-1] < losses.iloc[0]
        scores, others = lossy.summary["methods"][method], whole.summary["methods"][method]
        assert scores["bytes_up"] == pytest.approx(others["bytes_up"] * 4 / 6)  # 2 of 6 replies are lost


def test_silos_that_arrive_later_are_reported_apart():
    finished = ran("train.unseen=0.34")
    results, scores = finished.results, finished.summary["methods"]["fedamp"]
    late = results["measure"].str.endswith("_unseen")
    members, newcomers = set(results.loc[~late, "silo"]), set(results.loc[late, "silo"])
    assert (len(members), len(newcomers)) == (4, 2) and not members & newcomers
    assert set(results.loc[late, "round"]) == {2}
    arrived = 100 * values(results, method="fedamp", seed=0, round=2, split="test", measure="accuracy_unseen")
    assert scores["unseen"] == pytest.approx(arrived.mean())
    assert scores["per_silo_unseen"] == pytest.approx(arrived.to_dict())
    assert set(scores["per_silo"]) == members
    without = summarize(results[~late], {0: dict.fromkeys(members, 10)}, {})["fedamp"]
    for key in ("bmta", "last", "val_picked", "weighted", "bottom_decile", "bmta_cloud"):
        assert scores[key] == pytest.approx(without[key])
    assert "unseen" not in without


def test_each_seed_has_its_own_silos_and_models_are_of_the_first(tmp_path):
    words = ("--seeds", "3,1", "--methods", "separate", "--set", "data={name='digits',split='dirichlet',silos=5}")
    assert call("run", small(tmp_path), *words, "--out", tmp_path / "out", "--quiet") == 0
    results = pd.read_parquet(tmp_path / "out" / "results.parquet")
    assert list(results["seed"].unique()) == [3, 1]
    scores = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))["methods"]["separate"]
    assert [each["seed"] for each in scores["per_seed"]] == [3, 1]
    for each in scores["per_seed"]:
        accuracy = 100 * values(
            results, method="separate", seed=each["seed"], round=each["best_round"], split="test", measure="accuracy"
        )
        tests = {s.name: len(s.test) for s in catalog.load("digits", study_data(tmp_path), each["seed"]).silos}
        assert each["weighted"] == pytest.approx(np.average(accuracy, weights=[tests[silo] for silo in accuracy.index]))
    with safetensors.safe_open(tmp_path / "out" / "models" / "separate" / "silo-00.safetensors", "pt") as model:
        known = model.metadata()
        assert float(known.pop("temperature")) > 0
        assert known == {
            "silo": "silo-00",
            "method": "separate",
            "study": "small",
            "round": "2",
            "seed": "3",
            "classes": "10",
            "outputs": "10",
            "shape": "[1, 8, 8]",
            "input": "float32",
            "model": '{"name": "mlp", "hidden": [16]}',
        }


def study_data(folder):
    return tomllib.loads((folder / "out" / "study.toml").read_text("utf-8"))["data"]


def test_rows_are_measured_once_for_the_whole_study(monkeypatch):
    measured = iter([2, 1, 3])
    monkeypatch.setattr(Simulator, "measured_rows", lambda self: next(measured))
    finished = ran("engine.rows=auto", "seeds=[0, 1]")
    assert finished.study.machine.rows == 2
    assert list(measured) == [1, 3]


def test_a_regression_that_diverges_leaves_a_summary_that_is_json(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=np.stack([x.sum(1), x[:, 0]], 1))  # two targets
    data = f"data={{name='npz', path='{tmp_path / 'a.npz'}', silos=3}}"
    words = ("--set", data, "--set", "train.lr=1e6", "--quiet", "--out", tmp_path / "out")
    assert call("run", small(tmp_path), *words) == 0

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"), parse_constant=refuse)
    assert summary["methods"]["separate"]["last_rmse"] is None
    assert summary["methods"]["separate"]["best_round"] == 1


def test_one_silo_that_diverges_does_not_cost_the_others_their_results(tmp_path):
    rng = np.random.default_rng(0)
    x, owner = rng.normal(size=(90, 3)).astype(np.float32), np.repeat(["a", "b", "c"], 30)
    y = (x[:, 0] > 0).astype(np.int64)
    x[30:60] *= 1e30  # what b's model gives is not a number
    np.savez(tmp_path / "a.npz", x=x, y=y, owner=owner)
    data = f"data={{name='npz', path='{tmp_path / 'a.npz'}', split='natural'}}"
    assert call("run", small(tmp_path), "--set", data, "--quiet", "--out", tmp_path / "out") == 0
    measures = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))["methods"]["separate"]["measures"]
    assert set(measures["log_loss"]["silos"]) == set(measures["log_loss_raw"]["silos"]) == {"silo-00", "silo-02"}


def test_no_validation_data_is_no_reason_to_stop():
    scores = ran("data.validation=0").summary["methods"]["separate"]
    assert scores["val_picked"] is None and scores["bmta"] > 0


def test_infinity_is_nothing_in_json():
    assert _finite({"a": [math.inf, 1.5, None, "x"], "b": math.nan}) == {
        "a": [None, 1.5, None, "x"],
        "b": None,
    }


def test_the_predictions_are_of_the_round_that_validation_picks(out):
    predictions = pd.read_parquet(out / "predictions.parquet")
    results = pd.read_parquet(out / "results.parquet")
    assert list(predictions.columns[:9]) == FIRST
    assert set(predictions["split"]) == {"validation", "test"}
    predictions = predictions[predictions["split"] == "test"]
    for name in ("separate", "fedamp"):
        run = predictions[predictions["method"] == name]
        (picked,) = run["round"].unique()
        validation = values(results, method=name, seed=0, split="validation", measure="accuracy").unstack("silo")
        assert picked == validation.loc[1:].mean(axis=1).round(12).idxmax()
        reported = values(results, method=name, seed=0, round=picked, split="test", measure="accuracy")
        assert run.groupby("silo")["value"].mean().to_dict() == pytest.approx(reported.to_dict())


def test_without_validation_data_the_predictions_are_of_the_last_round():
    finished = ran("train.measure=['test']")
    assert set(finished.predictions["round"]) == {2}
    assert finished.summary["verdict"]["chosen"] is None


def test_a_run_says_everywhere_what_all_its_methods_spent_of_privacy(tmp_path, capsys):
    words = ["--methods", "fedamp,fedavg", "--seeds", "0,1", "--set", "methods.fedavg.privacy.noise=8"]
    assert call("run", small(tmp_path), "--out", tmp_path / "out", *words) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    told = summary["methods"]["fedavg"]["privacy"]
    assert told["uploads"] == 2 * tomllib.loads(SMALL)["train"]["rounds"]
    expected = {"epsilon": None, "level": "silo", "delta": 1e-5, "silo": None, "unprotected": ["fedamp"]}
    assert summary["privacy"] == expected
    words = "no differential privacy in all (ε = ∞): what fedamp uploads is not noised"
    assert words in " ".join(capsys.readouterr().out.split())
    assert words in (tmp_path / "out" / "report.html").read_text()
