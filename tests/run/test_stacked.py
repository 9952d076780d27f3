"""A stack from silos to files: what is deployed is what was measured, with the silo's own model where it has one."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from own_silos import NAMES, hospital

import coterie as co
from coterie.errors import BadInput

FEW = ("separate", "fedavg-ft", "fedem")


def tables(rows: int = 80) -> dict[str, pd.DataFrame]:
    return {name: hospital(place, rows).drop(columns=["patient", "cost"]) for place, name in enumerate(NAMES)}


def compared(source, incumbent="", methods=None, **options):
    silos = co.silos(source, "outcome", incumbent=incumbent)
    federation = co.Federation(silos, "linear", device="cpu")
    return federation.compare(methods or [co.Stack(of=FEW)], rounds=3, quiet=True, lr=0.05, optimizer="sgd", **options)


@pytest.fixture(scope="module", autouse=True)
def quick():
    """No baselines beside, no page, and few trees: neither is asked about here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.run.experiment.suits", lambda *given: False)
        patch.setattr("coterie.report.page.render", lambda *given: None)
        patch.setattr("coterie.data.own.trees.ROUNDS", 10)
        yield


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    found = compared(tables(), methods=[co.Separate(), co.Stack(of=FEW)])
    folder = tmp_path_factory.mktemp("stacked") / "run"
    found.save(folder)
    return folder


def test_the_saved_mixture_predicts_what_was_measured(plain):
    rows = pd.read_parquet(plain / "predictions.parquet")
    mine = rows[(rows["method"] == "stack") & (rows["silo"] == "north") & (rows["split"] == "test")]
    model = co.load_model(plain / "models" / "stack" / "north.safetensors")
    source = tables()["north"]
    predicted = model.predict(source.iloc[mine["row"].to_numpy() - 1])
    for name in model.classes:
        column = f"probability_{name}"
        assert predicted[column].to_numpy() == pytest.approx(mine[column].to_numpy(), abs=1e-5)
    assert json.loads(model.about["candidates"]) == ["separate", "fedavg-ft", "fedem", "fedavg"]


def test_the_summary_has_every_silos_mixture(plain):
    found = json.loads((plain / "summary.json").read_text("utf-8"))["methods"]["stack"]
    assert list(found["mixtures"]) == list(NAMES) and set(found.get("gated", {}).values()) <= {"separate"}
    assert all(sum(shares.values()) == pytest.approx(1, abs=1e-5) for shares in found["mixtures"].values())
    model = co.load_model(plain / "models" / "stack" / "north.safetensors")
    assert list(found["mixtures"]["north"].values()) == pytest.approx(model.module.core.weights.tolist(), abs=1e-6)


def test_the_saved_mixture_is_one_onnx_graph(plain, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = co.load_model(plain / "models" / "stack" / "coast.safetensors")
    model.to_onnx(tmp_path / "coast.onnx")
    x = torch.randn(4, *model.schema.shape)
    given = onnxruntime.InferenceSession(str(tmp_path / "coast.onnx")).run(None, {"x": x.numpy()})[0]
    assert given == pytest.approx(model.module(x).detach().numpy(), abs=1e-5)


def test_a_distilled_mixture_is_one_network_and_what_that_loses_is_noted(tmp_path):
    compared(tables(), methods=[co.Stack(of=FEW, distil=True)]).save(tmp_path / "run")
    found = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))["methods"]["stack"]
    assert list(found["mixtures"]) == list(found["distilled"]) == list(NAMES)
    model = co.load_model(tmp_path / "run" / "models" / "stack" / "north.safetensors")
    assert len(model.module.core.components) == 1 and "candidates" not in model.about
    rows = pd.read_parquet(tmp_path / "run" / "predictions.parquet")
    mine = rows[(rows["silo"] == "north") & (rows["split"] == "validation")]
    predicted = model.predict_proba(tables()["north"].iloc[mine["row"].to_numpy() - 1])
    columns = [f"probability_{name}" for name in model.classes]
    assert predicted == pytest.approx(mine[columns].to_numpy(), abs=1e-5)


def weights(found, silo="north"):
    model = found["stack"][silo]
    return dict(zip(json.loads(model.about["candidates"]), model.module.core.weights.tolist(), strict=True))


def with_column(right: bool) -> dict[str, pd.DataFrame]:
    """North has a model of its own: it is always right, or a coin."""
    made = tables(200)
    draw = np.random.default_rng(0)
    north = made["north"]
    guess = pd.Series(draw.choice(["healthy", "ill", "severe"], len(north)))
    made["north"] = north.assign(today=north["outcome"] if right else guess)
    return made


def test_a_much_better_model_of_its_own_keeps_all_the_weight_and_a_useless_one_none(tmp_path):
    found = compared(with_column(right=True), "today")
    assert weights(found)["incumbent"] >= 0.99
    assert weights(found, "coast")["incumbent"] == 0  # which has none
    row = with_column(right=True)["north"].head(5)
    assert (found["stack"]["north"].predict(row)["prediction"] == row["outcome"]).all()
    with pytest.raises(BadInput, match="give it as incumbent"):
        found["stack"]["north"].predict(row.drop(columns="today"))
    assert weights(compared(with_column(right=False), "today"))["incumbent"] <= 0.01


@pytest.mark.parametrize("label", ["outcome", "cost"])
def test_boosted_trees_are_a_model_of_ones_own_that_is_in_the_file(label, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    made = {name: hospital(place, 150).drop(columns=["patient"]) for place, name in enumerate(NAMES)}
    silos = co.silos(made, label, incumbent="trees", drop=["cost" if label == "outcome" else "outcome"])
    federation = co.Federation(silos, "linear", device="cpu")
    found = federation.compare([co.Stack(of=FEW)], rounds=2, quiet=True, lr=0.01, optimizer="sgd")
    model, silo = found["stack"]["coast"], federation._assembly.silos[2]
    trees = model.module.core.parts[-1]
    given = trees(torch.from_numpy(silo.test.x)).numpy()
    assert silo.name == "coast" and given.reshape(silo.test.incumbent.shape) == pytest.approx(
        silo.test.incumbent, abs=1e-5
    )
    assert weights(found, "coast")["incumbent"] > 0
    model.to_onnx(tmp_path / "coast.onnx")
    x = torch.from_numpy(silo.test.x)
    graph = onnxruntime.InferenceSession(str(tmp_path / "coast.onnx")).run(None, {"x": x.numpy()})[0]
    assert graph == pytest.approx(model.module(x).detach().numpy(), rel=1e-4, abs=1e-5)


def test_an_object_is_a_model_of_ones_own():
    class Today:
        classes_ = ("healthy", "ill", "severe")

        def predict_proba(self, x):
            assert "outcome" not in x
            return np.array([[0.6, 0.3, 0.1]] * len(x))

    found = compared(tables(), {"north": Today()})
    assert 0 <= weights(found)["incumbent"] < 1
    with pytest.raises(BadInput, match="there is no silo 'nord'"):
        compared(tables(), {"nord": Today()})


def test_an_onnx_file_of_an_earlier_run_is_a_model_of_ones_own(plain, tmp_path):
    pytest.importorskip("onnxruntime")
    co.load_model(plain / "models" / "separate" / "north.safetensors").to_onnx(tmp_path / "north.onnx")
    found = compared(tables(), str(tmp_path / "{silo}.onnx"))
    assert weights(found)["incumbent"] > 0 and weights(found, "coast")["incumbent"] == 0


def test_an_onnx_file_becomes_a_part_of_the_one_graph(plain, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    today = tmp_path / "today.onnx"
    co.load_model(plain / "models" / "separate" / "north.safetensors").to_onnx(today)
    compared(tables(), str(today)).save(tmp_path / "run")
    file = tmp_path / "run" / "models" / "stack" / "north.safetensors"
    with pytest.raises(BadInput, match="mixes in the silo's own, which is no ONNX file; give that as incumbent"):
        co.load_model(file).to_onnx(tmp_path / "without.onnx")
    model = co.load_model(file, incumbent=today)
    assert dict(zip(json.loads(model.about["candidates"]), model.module.core.weights, strict=True))["incumbent"] > 0.01
    model.to_onnx(tmp_path / "both.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "both.onnx"))
    assert [each.name for each in session.get_inputs()] == ["x"]
    assert [each.name for each in session.get_outputs()] == ["prediction"]
    rows = tables()["north"]
    given = session.run(None, {"x": model.encode(rows)})[0]
    assert given == pytest.approx(model.predict_proba(rows), abs=1e-5)


def test_a_column_that_no_silo_has_is_refused():
    with pytest.raises(BadInput, match="--incumbent todday: no silo has it"):
        compared(tables(), "todday")
