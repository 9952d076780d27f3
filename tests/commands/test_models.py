"""`coterie predict` and `coterie export`: raw rows in, predictions out."""

import io
import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors
import safetensors.torch
import torch
from command import call, small
from own_silos import hospital, hospitals

from coterie.data import catalog
from coterie.data.own.gather import gather
from coterie.data.own.ready import OwnData, split
from coterie.personal.file import load_model


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Models of classes, of numbers and of arrays, each by one model and by a mixture."""
    folder = tmp_path_factory.mktemp("runs")
    hospitals(folder / "h")
    common = ["--methods", "fedamp,fedem", "--rounds", 2, "--quiet", "--rows", "all"]
    for label, drop in (("outcome", "patient,cost"), ("cost", "patient,outcome")):
        words = ["--silos", folder / "h", "--label", label, "--drop", drop, "--out", folder / label]
        assert call("run", *words, *common) == 0
    assert call("run", small(folder), *common, "--out", folder / "digits") == 0
    return folder


def model(runs, study="outcome", method="fedem", silo="north"):
    return runs / study / "models" / method / f"{silo}.safetensors"


def predicted(capfd, *words):
    assert call("predict", *words) == 0
    return pd.read_csv(io.StringIO(capfd.readouterr().out))


def test_a_file_says_all_that_it_takes_to_use_it(runs):
    with safetensors.safe_open(model(runs), "pt") as file:
        about = file.metadata()
    told = {key: about[key] for key in ("silo", "method", "study", "round", "seed", "classes", "outputs", "input")}
    assert told == {
        "silo": "north", "method": "fedem", "study": "h", "round": "2", "seed": "0", "classes": "3", "outputs": "3",
        "input": "float32",
    }  # fmt: skip
    schema = json.loads(about["schema"])
    assert schema["classes"] == ["healthy", "ill", "severe"] and schema["columns"][0]["name"] == "age"
    assert json.loads(about["model"])["name"] in ("mlp", "linear") and json.loads(about["shape"]) == [8]


@pytest.mark.parametrize("method", ["fedamp", "fedem"])
def test_raw_rows_become_predictions_with_the_names_of_classes(runs, tmp_path, capfd, method):
    frame = hospital(1)
    frame.to_csv(tmp_path / "new.csv", index=False)
    frame.to_parquet(tmp_path / "new.parquet")
    table = predicted(capfd, model(runs, method=method), "--data", tmp_path / "new.csv")
    assert table["row"].tolist() == list(range(1, 61)) and set(table["prediction"]) <= {"healthy", "ill", "severe"}
    assert predicted(capfd, model(runs, method=method), "--data", tmp_path / "new.parquet").equals(table)
    expected = load_model(model(runs, method=method)).predict(frame)
    assert table["probability_ill"].to_numpy() == pytest.approx(expected["probability_ill"].to_numpy(), abs=1e-6)
    assert call("predict", model(runs), "--data", tmp_path / "new.csv", "--out", tmp_path / "p.csv") == 0
    assert len(pd.read_csv(tmp_path / "p.csv")) == 60


def test_new_levels_and_missing_values_are_no_obstacle(runs, tmp_path, capfd):
    frame = hospital(1).head(3).assign(ward=["roof", None, "er"], age=[None, 50, 50])
    frame.to_csv(tmp_path / "new.csv", index=False)
    assert len(predicted(capfd, model(runs), "--data", tmp_path / "new.csv")) == 3


def test_numbers_are_told_in_the_labels_own_unit(runs, tmp_path, capfd):
    hospital(1).drop(columns="cost").to_csv(tmp_path / "new.csv", index=False)
    table = predicted(capfd, model(runs, "cost"), "--data", tmp_path / "new.csv")
    assert list(table.columns) == ["row", "prediction"] and 500 < table["prediction"].mean() < 3000


def test_arrays_and_pictures(runs, tmp_path, capfd):
    image = pytest.importorskip("PIL.Image")
    x = np.random.default_rng(0).integers(0, 256, (2, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "x.npz", x=x)
    (tmp_path / "pictures").mkdir()
    for i, picture in enumerate(x):
        image.fromarray(picture).save(tmp_path / "pictures" / f"{i}.png")
    digits = next((runs / "digits" / "models" / "fedamp").iterdir())
    arrays = predicted(capfd, digits, "--data", tmp_path / "x.npz")
    assert set(map(str, arrays["prediction"])) <= set("0123456789")
    pictures = predicted(capfd, digits, "--data", tmp_path / "pictures")
    assert pictures["file"].tolist() == ["0.png", "1.png"]
    assert pictures.drop(columns="file").equals(arrays.drop(columns="row"))


@pytest.mark.parametrize(("study", "method"), [("outcome", "fedamp"), ("outcome", "fedem"), ("cost", "fedem")])
def test_onnx_says_what_the_model_says(runs, tmp_path, capfd, study, method):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert call("export", model(runs, study, method), "--onnx", tmp_path / "m.onnx") == 0
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    ours = load_model(model(runs, study, method))
    for rows in (1, 60):
        x = ours.encode(hospital(1).head(rows))
        (told,) = session.run(None, {"x": x})
        np.testing.assert_allclose(told, ours.module(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5)
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["schema"]) == json.loads(json.dumps(ours.schema.as_table())) and known["silo"] == "north"


def changed(path, out, tensors=lambda t: t, **about):
    """A copy of a model's file with something changed."""
    with safetensors.safe_open(path, "pt") as file:
        known = {k: v for k, v in (file.metadata() | about).items() if v is not None}
        held = tensors({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    safetensors.torch.save_file(held, out, known)
    return out


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"model": None}, "does not say what model it is"),
        ({"model": "{"}, "does not say what model it is"),
        ({"model": "[1]"}, "makes no sense"),
        ({"model": '{"name": "mlp", "hidden": [999999999999]}'}, "m.safetensors: [model] mlp: 11999999999991 weights"),
        ({"model": '{"name": "mlq"}'}, "unknown model 'mlq'"),
        ({"model": '{"name": "os:system"}'}, "a file runs no code"),
        ({"shape": "[7]"}, "its schema is not that of its model"),
        ({"shape": "7"}, "does not say what model it is"),
        ({"outputs": "-1"}, "makes no sense"),
        ({"outputs": "4", "classes": "4"}, "its schema is not that of its model"),
        ({"schema": '{"columns": 3}'}, "columns: expected a list"),
        ({"schema": "[]"}, "expected a table"),
    ],
)
def test_a_file_that_lies_is_refused_in_one_line(runs, tmp_path, capfd, about, said):
    path = changed(model(runs), tmp_path / "m.safetensors", **about)
    hospital(1).to_csv(tmp_path / "new.csv", index=False)
    assert call("predict", path, "--data", tmp_path / "new.csv") == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1


def test_weights_that_do_not_fit_are_refused(runs, tmp_path, capfd):
    hospital(1).to_csv(tmp_path / "new.csv", index=False)
    fewer = changed(model(runs), tmp_path / "a.safetensors", lambda t: {k: v for k, v in t.items() if "bias" not in k})
    assert call("predict", fewer, "--data", tmp_path / "new.csv") == 2
    assert "are not those of its model" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda f: hospital(1).drop(columns="age").to_csv(f / "d.csv", index=False), "column 'age' is missing"),
        (lambda f: hospital(1).assign(age="old").to_csv(f / "d.csv", index=False), "'old' in row 1 is no number"),
        (lambda f: np.savez(f / "d.npz", x=np.zeros((2, 8))), "takes a table with the columns age"),
        (lambda f: np.savez(f / "d.npz", z=np.zeros((2, 8))), "name the samples x"),
        (lambda f: (f / "d.txt").touch(), "neither a .csv, .parquet or .npz file"),
        (lambda f: (f / "d").mkdir(), "holds no pictures"),
        (lambda f: None, "cannot be read"),
    ],
)
def test_data_that_do_not_fit_are_refused_in_one_line(runs, tmp_path, capfd, data, said):
    data(tmp_path)
    path = next(tmp_path.glob("d*"), tmp_path / "none.csv")
    assert call("predict", model(runs), "--data", path) == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1


def test_files_are_not_overwritten_and_a_damaged_model_is_no_model(runs, tmp_path, capfd):
    hospital(1).to_csv(tmp_path / "new.csv", index=False)
    assert call("predict", model(runs), "--data", tmp_path / "new.csv", "--out", tmp_path / "new.csv") == 2
    assert "exists already" in capfd.readouterr().err
    assert call("export", model(runs), "--onnx", tmp_path / "new.csv") == 2
    assert "exists already" in capfd.readouterr().err
    assert call("predict", tmp_path / "new.csv", "--data", tmp_path / "new.csv") == 2
    assert "damaged or not a safetensors file" in capfd.readouterr().err
    assert call("predict", tmp_path / "none", "--data", tmp_path / "new.csv") == 2
    assert "cannot be read" in capfd.readouterr().err


def test_a_folder_is_no_model_and_a_model_without_an_incumbent_takes_none(runs, tmp_path, capfd):
    hospital(1).to_csv(tmp_path / "new.csv", index=False)
    assert call("predict", tmp_path, "--data", tmp_path / "new.csv") == 2
    assert "is a folder; give a model in it" in capfd.readouterr().err
    assert call("predict", model(runs), "--data", tmp_path / "new.csv", "--incumbent", tmp_path / "new.csv") == 2
    assert "mixes in none of the silo's own; leave the incumbent out" in capfd.readouterr().err


def test_onnx_that_is_not_installed_is_said_so(runs, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("coterie.personal.onnx_graph.find_spec", lambda name: None)
    assert call("export", model(runs), "--onnx", tmp_path / "m.onnx") == 2
    assert "pip install 'coterie[onnx]'" in capfd.readouterr().err


JUDGED = {  # by run: options, the method that the verdict judges, and the round it has picked, of 8
    "outcome": (["--label", "outcome", "--drop", "patient,cost", "--set", "train.lr=5.0"], "fedamp", 7),
    "cost": (["--label", "cost", "--drop", "patient,outcome", "--set", "train.lr=0.3"], "fedamp", 7),
    "digits": (["--set", "train.lr=3.0"], "fedamp", 5),
}


@pytest.mark.parametrize("label", JUDGED)
def test_the_model_that_is_saved_is_the_model_that_is_judged(label, tmp_path, capfd):
    """Predictions of the saved models score on the test rows exactly as the verdict and the tables say."""
    options, judged, round = JUDGED[label]
    hospitals(tmp_path / "h")
    data = [small(tmp_path)] if label == "digits" else ["--silos", tmp_path / "h"]
    common = [
        "--methods",
        "separate,fedamp,fedem",
        "--rounds",
        8,
        "--rows",
        "all",
        "--quiet",
        "--out",
        tmp_path / "out",
    ]
    assert call("run", *data, *options, *common) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
    verdict, methods = summary["verdict"], summary["methods"]
    assert (verdict["judged"], methods[judged]["picked_round"]) == (judged, round)
    study = tomllib.loads((tmp_path / "out" / "study.toml").read_text("utf-8"))
    for name, (rows, truth) in rows_tested(study["data"], label).items():
        path = tmp_path / ("rows.npz" if label == "digits" else "rows.csv")
        np.savez(path, x=rows) if label == "digits" else rows.to_csv(path, index=False)
        for method, scores in methods.items():
            model = tmp_path / "out" / "models" / method / f"{name}.safetensors"
            with safetensors.safe_open(model, "pt") as file:
                assert file.metadata()["round"] == str(scores["picked_round"])
            told = predicted(capfd, model, "--data", path)["prediction"].to_numpy()
            found = np.sqrt(np.mean((told - truth) ** 2)) if label == "cost" else 100 * np.mean(told == truth)
            assert found == pytest.approx(scores["per_silo_picked"][name], rel=1e-5), (method, name)
            if method == judged:
                (standing,) = [each for each in verdict["silos"] if each["silo"] == name]
                assert found == pytest.approx(standing["score"], rel=1e-5 if label == "cost" else 1e-12), name


def rows_tested(data, label):
    """By silo: the rows it tests with, as a person has them, and their labels."""
    if label == "digits":
        return {silo.name: (silo.test.x, silo.test.y) for silo in catalog.load("digits", data, 0).silos}
    own = OwnData(path=data["path"], label=data["label"], drop=tuple(data["drop"]))
    splits = [split(holding, own, 0) for holding in gather(Path(own.path), own.label, own.drop)]
    kind = float if label == "cost" else str
    return {s.holding.name: (s.holding.x.iloc[s.test], s.holding.y.iloc[s.test].astype(kind)) for s in splits}
