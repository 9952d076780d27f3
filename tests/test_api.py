"""The Python API: ten lines from silos to predictions."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from own_silos import NAMES, hospital, hospitals
from torch import nn
from torch.utils.data import TensorDataset

import coterie as co
from coterie.engine.training import Training
from coterie.methods import METHODS, make
from coterie.methods.wrappers.finetune import FineTuning, WithFineTuning
from coterie.options import describe
from coterie.result import Result
from coterie.run import experiment, tuning
from coterie.runs.folder import Begun
from coterie.runs.read import Run
from coterie.studies.own import OWN

DROP = ["patient", "cost"]


class MyNet(nn.Module):
    """With BatchNorm and dropout."""

    def __init__(self, inputs=8, outputs=3):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.last = nn.Linear(8, outputs)

    def forward(self, x):
        return self.last(self.hidden(x))


def silos(**options):
    frames = {name: hospital(i) for i, name in enumerate(NAMES)}
    return co.silos(frames, **({"label": "outcome", "drop": DROP} | options))


@pytest.fixture(scope="module")
def federation():
    return co.Federation(silos(), model=MyNet, rows="all")


@pytest.fixture(scope="module")
def comparison(federation):
    return federation.compare([co.Separate(), co.FedAMP(tau=0.75), co.FedEM(components=2)], rounds=3)


def test_a_method_trains_and_every_answer_is_pandas(comparison):
    result = comparison["fedamp"]
    assert list(result.table().index) == list(NAMES) and {"accuracy", "loss"} <= set(result.table().columns)
    assert list(comparison.table().index) == ["separate", "fedamp", "fedem"] and comparison.table()["bmta"].min() > 0
    assert comparison.per_silo().shape == (5, 3)
    assert list(comparison.gains()["silo"]) == list(NAMES)
    assert any(f"{word} " in comparison.verdict() for word in ("Take", "No method is chosen"))
    assert set(result.results["method"]) == {"fedamp"} and set(comparison.results["method"]) == set(comparison.methods)
    weights = result.collaboration()
    assert list(weights.index) == list(weights.columns) == list(NAMES)
    assert weights.sum(axis=1).to_numpy() == pytest.approx(1, abs=1e-5)
    assert not np.allclose(weights, result.collaboration(0))
    assert "st-mary" in result._repr_html_() and "fedem" in comparison._repr_html_()


def test_a_comparison_and_a_result_draw_the_figures_of_the_report(comparison):
    by_name = {line.name: line for line in comparison.plot().data if line.name}
    assert [name for name in by_name if "cloud" not in name] == ["separate", "fedamp", "fedem"]
    assert list(by_name["fedem"].x) == [0, 1, 2, 3]
    assert list(comparison.plot("scores").data[0].y) == comparison.methods
    assert [len(box.x) for box in comparison.plot("silos").data] == [5, 5, 5]
    assert sum(len(each.y) for each in comparison.plot("gains").data if each.error_x.type) == 5
    result = comparison["fedamp"]
    assert {line.name for line in result.plot().data if line.name} == {"fedamp", "fedamp (cloud)"}
    weights = result.plot("collaboration").data[0]
    assert np.sort(weights.z, None) == pytest.approx(np.sort(result.collaboration().to_numpy(), None))
    for figure in (comparison.plot("gains"), result.plot("collaboration")):
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "white"  # readable in a dark notebook


def test_what_cannot_be_drawn_is_refused_in_one_line(comparison, monkeypatch):
    with pytest.raises(co.BadInput, match=r"plot: unknown 'round'; did you mean 'rounds'"):
        comparison.plot("round")
    with pytest.raises(co.BadInput, match=r"plot\('collaboration'\): .* one method's; e\.g\. comparison\['fedamp'\]"):
        comparison.plot("collaboration")
    with pytest.raises(co.BadInput, match="separate has no weights between silos"):
        comparison["separate"].plot("collaboration")
    with pytest.raises(co.BadInput, match="one method alone has no verdict"):
        comparison["fedamp"].plot("gains")
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(co.BadInput, match="plotly, which is not installed here: pip install plotly"):
        comparison.plot()


def test_predictions_are_those_that_were_measured(federation, comparison):
    for method in ("fedamp", "fedem"):
        result = comparison[method]
        silo = next(s for s in federation._assembly.silos if s.name == "north")
        model = result["north"]
        with torch.no_grad():
            told = model.module(torch.from_numpy(silo.test.x)).argmax(1).numpy()
        assert (told == silo.test.y).mean() == pytest.approx(result.table().loc["north", "accuracy"], abs=1e-6)
    raw = hospital(1).drop(columns=["outcome", "site"])
    table = model.predict(raw)
    assert list(table.columns) == ["prediction", *(f"probability_{c}" for c in ("healthy", "ill", "severe"))]
    assert table.iloc[:, 1:].sum(axis=1).to_numpy() == pytest.approx(1, abs=1e-5)
    assert (table["prediction"] == [c.removeprefix("probability_") for c in table.iloc[:, 1:].idxmax(axis=1)]).all()
    pd.testing.assert_frame_equal(model.predict(raw.iloc[::-1]), table.iloc[::-1], check_exact=False)


def test_tables_are_of_the_picked_round_of_each_seed(comparison):
    rows = [
        ("amp", seed, round, silo, "test", "accuracy", value + (silo == "b"))
        for seed, values in {3: (10, 20, 40), 7: (50, 60, 90)}.items()
        for round, value in enumerate(values, 1)
        for silo in "ab"
    ]
    results = pd.DataFrame(rows, columns=["method", "seed", "round", "silo", "split", "measure", "value"])
    scores = {"per_seed": [{"seed": 3, "picked_round": 2}, {"seed": 7, "picked_round": 1}]}
    result = Result(Run("made", {"amp": scores}, results), Path("nowhere"))
    assert result.table()["accuracy"].to_dict() == {"a": 35.0, "b": 36.0}
    assert comparison.table().columns[0] == "val_picked"
    for method, told in comparison.summary.items():
        assert comparison.per_silo()[method].to_dict() == told["per_silo_picked"]
        assert (100 * comparison[method].table()["accuracy"]).to_dict() == pytest.approx(told["per_silo_picked"])


def test_a_mixture_mixes_predictions_and_not_outputs(comparison):
    model = comparison["fedem"]["north"]
    x = torch.randn(4, 8)
    parts = torch.stack([component(x).softmax(1) for component in model.module.core.components])
    mixed = (model.module.core.mixture[:, None, None] * parts).sum(0)
    tempered = mixed ** (1 / model.module.temperature)
    assert len(parts) == 2 and torch.allclose(model.module(x), tempered / tempered.sum(1, keepdim=True), atol=1e-6)


def test_saving_writes_the_folder_of_a_run_and_models_come_back(comparison, tmp_path):
    comparison.save(tmp_path / "out")
    names = {"study.toml", "results.parquet", "summary.json", "models", "collaboration", "report.html"}
    names |= {"predictions.parquet", "labels.parquet", "splits.parquet", "deploy"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == names
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out" / "results.parquet"), comparison.results)
    raw = hospital(1)
    for method in ("fedamp", "fedem"):
        again = co.load_model(tmp_path / "out" / "models" / method / "north.safetensors", MyNet)
        pd.testing.assert_frame_equal(again.predict(raw), comparison[method]["north"].predict(raw))
    with pytest.raises(co.BadInput, match="exists already"):
        comparison.save(tmp_path / "out")
    assert comparison["fedamp"].report(tmp_path / "r.html").read_text("utf-8").startswith("<!doctype html>")


def test_the_folder_of_a_run_is_loaded_with_all_that_was_in_it(comparison, tmp_path):
    again = co.load_result(comparison.save(tmp_path / "out"), MyNet)
    assert repr(again) == repr(comparison) and again.verdict() == comparison.verdict()
    for table in ("table", "per_silo", "gains"):
        pd.testing.assert_frame_equal(getattr(again, table)(), getattr(comparison, table)())
    mine, known = again["fedamp"], comparison["fedamp"]
    pd.testing.assert_frame_equal(mine.table(), known.table())
    pd.testing.assert_frame_equal(mine.collaboration(1), known.collaboration(1))
    pd.testing.assert_frame_equal(mine["north"].predict(hospital(1)), known["north"].predict(hospital(1)))
    elsewhere = again.report(tmp_path / "r.html").read_text("utf-8").replace("<a href='out/", "<a href='./")
    assert elsewhere == (tmp_path / "out" / "report.html").read_text("utf-8")
    for file in ("study.toml", "summary.json", "report.html"):
        assert (again.save(tmp_path / file) / file).read_text("utf-8") == (tmp_path / "out" / file).read_text("utf-8")


def test_one_method_of_a_loaded_run_is_saved_as_a_run_of_its_own(comparison, tmp_path):
    out = comparison["fedamp"].save(tmp_path / "one")
    alone = co.load_result(out, MyNet)
    assert list(alone) == ["fedamp"] and set(alone.results["method"]) == {"fedamp"}
    assert set(pd.read_parquet(out / "predictions.parquet")["method"]) == {"fedamp"}
    assert [path.name for path in (out / "models").iterdir()] == ["fedamp"]
    assert list(alone.run.study["methods"]) == ["fedamp"]
    with pytest.raises(co.BadInput, match="one method alone has no verdict; compare several"):
        alone.verdict()


def test_a_result_and_a_comparison_are_loaded_by_their_classes_and_not_by_each_others(comparison, tmp_path):
    several, one = comparison.save(tmp_path / "several"), comparison["fedamp"].save(tmp_path / "one")
    assert repr(co.Comparison.load(several, MyNet)) == repr(comparison)
    again = co.Result.load(one, MyNet)
    assert repr(again) == repr(comparison["fedamp"])
    pd.testing.assert_frame_equal(
        again["north"].predict(hospital(1)), comparison["fedamp"]["north"].predict(hospital(1))
    )
    with pytest.raises(co.BadInput, match=r"several: holds 3 methods, separate, fedamp, fedem; take Comparison\.load"):
        co.Result.load(several)
    with pytest.raises(co.BadInput, match=r"one: holds one method alone, fedamp; take Result\.load"):
        co.Comparison.load(one)


def test_what_is_no_finished_run_is_refused_in_one_line(comparison, tmp_path):
    with pytest.raises(co.BadInput, match="no such folder; give the folder of a run"):
        co.load_result(tmp_path / "nowhere")
    with pytest.raises(co.BadInput, match=r"no summary.json in it; give the folder of a run"):
        co.load_result(tmp_path)
    Begun(comparison.run.about["toml"], "").write(tmp_path)
    with pytest.raises(co.BadInput, match="has not finished; go on with: coterie run --resume"):
        co.load_result(tmp_path)
    out = comparison.save(tmp_path / "out")
    (out / "models" / "fedamp" / "north.safetensors").write_bytes(b"no model")
    with pytest.raises(co.BadInput, match="damaged or not a safetensors file"):
        co.load_result(out, MyNet)["fedamp"]["coast"]
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    summary["methods"]["../elsewhere"] = summary["methods"]["fedamp"]
    (out / "summary.json").write_text(json.dumps(summary), "utf-8")
    with pytest.raises(co.BadInput, match=r"'../elsewhere': a label is up to 60 printable characters"):
        co.load_result(out)
    out = comparison.save(tmp_path / "bare")
    shutil.rmtree(out / "models")
    with pytest.raises(co.BadInput, match=r"no models were kept"):
        co.load_result(out)["fedamp"]["coast"]


def test_methods_and_silos_are_iterated_by_their_names(federation, comparison):
    assert list(comparison) == comparison.methods and len(comparison) == 3
    assert "fedem" in comparison and "fedamq" not in comparison
    result = comparison["fedamp"]
    assert list(result) == list(NAMES) and len(result) == 5 and "north" in result and "nort" not in result
    late = federation.train("fedavg", rounds=1, quiet=True, unseen=0.4)
    assert len(late) == 3 and [late[name].silo for name in late] == list(late)  # newcomers have no model


def test_probabilities_and_a_score_as_scikit_learn_has_them(comparison):
    model, raw = comparison["fedem"]["north"], hospital(1)
    assert model.classes == ["healthy", "ill", "severe"]
    assert np.array_equal(model.predict_proba(raw), model.predict(raw).iloc[:, 1:].to_numpy())
    assert model.score(raw, raw["outcome"]) == (model.predict(raw)["prediction"] == raw["outcome"]).mean()
    assert model.score(raw, raw["outcome"].where(raw["outcome"] == "ill")) == (
        (model.predict(raw)["prediction"] == "ill")[raw["outcome"] == "ill"].mean()
    )
    with pytest.raises(co.BadInput, match="60 rows but 59 labels"):
        model.score(raw, raw["outcome"][1:])
    with pytest.raises(co.BadInput, match=r"score: no labels to .*; give model\.score\(rows, labels\)"):
        model.score(raw)


def test_a_score_of_numbers_is_r2_and_they_have_no_probabilities():
    x = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    y = 500 + 40 * x[:, 0]
    given = co.silos({"a": (x[:40], y[:40]), "b": (x[40:], y[40:])})
    model = co.Federation(given, model="linear").train("fedavg", rounds=3, quiet=True)["b"]
    off = y[40:] - model.predict(x[40:])["prediction"].to_numpy()
    assert model.score(x[40:], y[40:]) == pytest.approx(1 - (off**2).mean() / y[40:].var(), rel=1e-5)
    assert np.isnan(model.score(x[:2], [7, 7]))
    with pytest.raises(co.BadInput, match="predicts numbers, which have no probabilities; take predict"):
        model.predict_proba(x)


def test_a_number_may_name_a_class():
    rng = np.random.default_rng(0)
    given = {name: (rng.normal(size=(40, 3)), rng.integers(2, size=40)) for name in "ab"}
    model = co.Federation(co.silos(given), model="linear").train("fedavg", rounds=1, quiet=True)["a"]
    x, y = given["a"]
    assert model.score(x, y) == (model.predict(x)["prediction"].astype(int) == y).mean() > 0


def test_a_study_runs_in_python_as_on_the_command_line(tmp_path, monkeypatch):
    from command import call

    monkeypatch.chdir(tmp_path)
    study = co.study(
        "em-table2", data="synthetic", scale="small", methods=["separate", "fedem"],
        set={"train.rounds": 2, "methods.fedem.components": 2, "engine.rows": "all", "data.silos": 6},
    )  # fmt: skip
    assert repr(study) == "Experiment(em-table2, synthetic, small: separate, fedem; 2 rounds, 1 seed)"
    assert tomllib.loads(study.toml)["methods"]["fedem"]["components"] == 2
    made = study.run(quiet=True)
    assert not any(tmp_path.iterdir()) and made.methods == ["separate", "fedem"]
    words = ["em-table2", "--data", "synthetic", "--scale", "small", "--methods", "separate,fedem", "--rounds", 2]
    words += ["--set", "methods.fedem.components=2", "--set", "data.silos=6", "--rows", "all", "--quiet", "--out", "a"]
    assert call("run", *words) == 0
    pd.testing.assert_frame_equal(made.results, co.load_result("a").results)
    assert co.study("a/study.toml").run(tmp_path / "b", quiet=True).methods == made.methods
    assert (tmp_path / "b" / "study.toml").read_text("utf-8") == (tmp_path / "a" / "study.toml").read_text("utf-8")


def test_mistakes_in_a_study_are_found_when_it_is_loaded():
    for given, told in (
        ({"name": "em-tabel2"}, "unknown study 'em-tabel2'; did you mean 'em-table2'"),
        ({"data": "synthetc"}, "no such cell; did you mean 'synthetic'"),
        ({"methods": ["fedam"]}, "unknown method 'fedam'; did you mean 'fedamp'"),
        ({"methods": [co.FedEM()]}, "methods: expected names, e.g. .'fedamp'., found"),
        ({"methods": "fedem"}, "methods: expected names, e.g. .'fedamp'., found 'fedem'"),
        ({"set": {"train.round": 3}}, r"\[train\]: unknown key 'round'; did you mean 'rounds'"),
        ({"set": {"train.lr": None}}, "set train.lr: expected a value as in a study file, found None"),
        ({"sale": "small"}, "study: unknown key 'sale'; did you mean 'scale'"),
    ):
        with pytest.raises(co.BadInput, match=told):
            co.study(**({"name": "em-table2"} | given))


def test_wrappers_are_given_in_any_order_and_run_as_a_study_says():
    one = co.with_privacy(co.with_finetuning(co.FedAvg(), epochs=2), clip=2, noise=0.5)
    other = co.with_finetuning(co.with_privacy("fedavg", clip=2, noise=0.5), epochs=2)
    table = {"finetune": {"epochs": 2}, "privacy": {"clip": 2.0, "noise": 0.5}}
    assert one == other == make("fedavg", table)
    assert co.with_compression("fedavg", bits=8) == make("fedavg", {"compress": {"bits": 8}})
    assert co.with_clipping("fedavg", norm=3) == make("fedavg", {"clip_update": {"norm": 3}})
    assert co.with_blind("fedamp", sketch=64) == make("fedamp", {"blind": {"sketch": 64}})
    assert co.with_secagg("fedavg") == make("fedavg", {"secagg": {}})
    assert co.with_robustness("fedavg", rule="krum") == make("fedavg", {"robust": {"rule": "krum"}})
    made = co.Federation(silos(), model="linear", rows="all").train(one, rounds=1, lr=0.1, quiet=True)
    assert make("fedavg", made.run.study["methods"]["fedavg"]) == one and made.summary["fedavg"]["privacy"]


def test_a_method_in_a_wrapper_is_shown_without_what_is_as_by_default():
    once = co.with_privacy(co.FedAMP(sigma=3), clip=2)
    assert repr(once) == "WithPrivacy(FedAMP(sigma=3), clip=2.0, noise=1.0)"
    twice = co.with_compression(co.with_finetuning(co.FedAvgFT()), bits=8)
    assert repr(twice) == "WithCompression(WithFineTuning(FedAvgFT()), bits=8)"
    assert repr(co.with_personal("fedavg", columns=["norm"])) == "WithPersonal(FedAvg(), columns=('norm',))"
    assert repr(co.with_secagg("fedavg")) == "WithSecAgg(FedAvg())"


def test_mistakes_in_wrappers_are_told_at_once():
    for given, told in (
        (lambda: co.with_privacy("fedavg", nois=1), "with_privacy: unknown key 'nois'; did you mean 'noise'"),
        (lambda: co.with_privacy("fedavg", delta=2), "with_privacy delta: 2.0 is out of range"),
        (lambda: co.with_compression("fedavg"), "with_compression: give either top_k, e.g. 0.05, or bits = 8"),
        (lambda: co.with_clipping("fedavq"), "unknown method 'fedavq'; did you mean 'fedavg'"),
        (lambda: co.with_clipping(3), "3 is no method; give one such as coterie.FedAMP"),
        (
            lambda: co.with_clipping(co.with_clipping("fedavg")),
            "with_clipping: the method has it already; give it once",
        ),
    ):
        with pytest.raises(co.BadInput, match=told):
            given()


def test_unknown_keywords_are_told_with_the_nearest(federation):
    for given, told in (
        (lambda: silos(lable="outcome"), "silos: unknown key 'lable'; did you mean 'label'"),
        (lambda: co.Federation(silos(), modle="mlp"), "Federation: unknown key 'modle'; did you mean 'model'"),
        (lambda: federation.train("fedavg", quite=True), "train: unknown key 'quite'; did you mean 'quiet'"),
        (lambda: federation.compare(local_epoch=3), "compare: unknown key 'local_epoch'; did you mean 'local_epochs'"),
    ):
        with pytest.raises(co.BadInput, match=told):
            given()


def test_an_option_that_a_method_does_not_have_is_told_with_the_nearest():
    with pytest.raises(co.BadInput, match=r"^FedAMP: unknown key 'sigm'; did you mean 'sigma'\?"):
        co.FedAMP(sigm=3)
    with pytest.raises(co.BadInput, match=r"^FedAvg: unknown key 'sigma'; known: none"):
        co.FedAvg(sigma=3)

    class Mine(co.FedAvg):
        def __init__(self, how="", **more):
            super().__init__()

    assert isinstance(Mine("so", other=3), Mine)  # what takes any keyword is asked itself


def test_an_option_of_the_method_given_to_the_training_is_told_as_such(federation):
    for given, told in (
        (lambda: federation.train("fedamp", sigma=3), r"sigma is .* the method: give coterie\.FedAMP\(sigma=3\)"),
        (lambda: federation.train(method=co.with_clipping("fedem"), components=2), r"coterie\.FedEM\(components=2\)"),
        (lambda: federation.compare({"mine": co.APPLE()}, 3, mu=0.5), r"coterie\.APPLE\(mu=0\.5\)"),
        (lambda: federation.compare(sigma=3), r"coterie\.FedAMP\(sigma=3\)"),
        (lambda: federation.train("fedavg", sigma=3), "train: unknown key 'sigma'"),
        (lambda: federation.compare("fedamp", sigma=3), "compare: unknown key 'sigma'"),
        (lambda: federation.compare(5, sigma=3), "compare: unknown key 'sigma'"),
    ):
        with pytest.raises(co.BadInput, match=told):
            given()


def test_docstrings_list_the_options_with_the_defaults_that_hold():
    for call in (co.Federation.train, co.Federation.compare):
        for each in describe(Training):
            if each.name != "rounds":
                default = OWN["train"].get(each.name, each.default)
                assert f"{each.name}={default!r}: {each.doc}" in call.__doc__
    assert "clip=1.0: C, the longest change" in co.with_privacy.__doc__


def test_plain_pytorch_loads_a_saved_model_in_three_lines(comparison, tmp_path):
    comparison["fedamp"].save(tmp_path / "out")
    net = MyNet()
    net.load_state_dict(safetensors.torch.load_file(tmp_path / "out" / "models" / "fedamp" / "north.safetensors"))
    net.eval()
    model = comparison["fedamp"]["north"]
    x = torch.from_numpy(model.encode(hospital(1)))
    temperature = float(model.about["temperature"])
    assert temperature != 1 and torch.allclose((net(x) / temperature).softmax(1), model.module(x), atol=1e-6)


def test_a_folder_in_python_gives_what_the_command_gives(tmp_path, monkeypatch):
    from command import call

    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path / "hospitals")
    words = ["--silos", "hospitals", "--label", "outcome", "--drop", "patient,cost", "--rounds", 2, "--quiet"]
    assert call("run", *words, "--methods", "separate,apple", "--out", "a", "--rows", "all") == 0
    fed = co.Federation(co.silos("hospitals", label="outcome", drop=DROP), rows="all")
    made = fed.compare(["separate", co.APPLE()], rounds=2)
    pd.testing.assert_frame_equal(made.results, pd.read_parquet("a/results.parquet"))
    assert list(fed.table().columns) == ["train", "validation", "test"]
    assert "lacks class severe" in set(fed.differences["what"])


@pytest.mark.parametrize(
    "model", [None, "linear", {"name": "mlp", "hidden": [4]}, MyNet, MyNet(), lambda i, o: MyNet(i, o)]
)
def test_a_model_may_be_chosen_named_or_given(model):
    result = co.Federation(silos(), model=model, rows="all").train("fedavg", rounds=1, quiet=True)
    assert result["north"].predict(hospital(1)).shape == (60, 4)


def test_datasets_and_arrays_are_silos_and_numbers_are_told_in_their_unit():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    y = (500 + 40 * x[:, 0]).astype(np.float32)
    given = {"a": TensorDataset(torch.from_numpy(x[:40]), torch.from_numpy(y[:40])), "b": (x[40:], y[40:])}
    result = co.Federation(co.silos(given), model="linear").train(co.FedAvg(), rounds=25, lr=0.1)
    assert result["b"].predict(x[40:])["prediction"].to_numpy() == pytest.approx(y[40:], abs=3)
    assert result.table()["rmse"].max() < 3 and result.table()["r2"].min() > 0.99


def test_mistakes_are_told_before_any_training(federation, comparison):
    with pytest.raises(co.BadInput, match="unknown model 'mlq'"):
        co.Federation(silos(), model="mlq")
    with pytest.raises(co.BadInput, match="cannot take samples of shape"):
        co.Federation(silos(), model=lambda: nn.Linear(5, 3))
    with pytest.raises(co.BadInput, match=r"^Federation silos: a dict; give coterie\.silos\(") as told:
        co.Federation({"north": hospital(1), "east": hospital(2)})
    assert "outcome" not in str(told.value)
    with pytest.raises(co.BadInput, match="has no column 'nope'"):
        silos(label="nope")
    with pytest.raises(co.BadInput, match="--drop pateint: no table has such a column; did you mean 'patient'"):
        silos(drop=["pateint"])
    with pytest.raises(co.BadInput, match="tau: 3 is out of range"):
        federation.train(co.FedAMP(tau=3))
    with pytest.raises(co.BadInput, match="unknown key 'lrr'; did you mean 'lr'"):
        federation.train(co.FedAMP(), lrr=3)
    with pytest.raises(co.BadInput, match="is no method; give one such as"):
        federation.compare([3])
    with pytest.raises(co.BadInput, match="no silo 'nort' was trained; did you mean 'north'"):
        comparison["fedamp"]["nort"]
    with pytest.raises(co.BadInput, match="no method 'fedamq' was trained"):
        comparison["fedamq"]
    with pytest.raises(co.BadInput, match="separate has no weights between silos"):
        comparison["separate"].collaboration()
    with pytest.raises(co.BadInput, match="round 9 was not measured"):
        comparison["fedamp"].collaboration(9)
    with pytest.raises(co.BadInput, match="takes a table with the columns age"):
        comparison["fedamp"]["north"].predict(np.zeros((2, 8)))
    with pytest.raises(co.BadInput, match="column 'ward' is missing"):
        comparison["fedamp"]["north"].predict(hospital(1).drop(columns="ward"))


@pytest.mark.slow
def test_data_are_prepared_once_for_all_comparisons(monkeypatch):
    prepared, ready = [], experiment.ready
    monkeypatch.setattr(experiment, "ready", lambda *given: prepared.append(given[2]) or ready(*given))
    fed = co.Federation(silos(), model="linear", rows="all", seeds=(3, 4))
    assert prepared == [3]
    first = fed.train("fedavg", rounds=1, quiet=True)
    assert prepared == [3, 4]
    again = fed.train("fedavg", rounds=1, quiet=True)
    pd.testing.assert_frame_equal(first.results, again.results)
    held_out = fed.train("fedavg", rounds=1, quiet=True, unseen=0.4)  # other options hold for the same data
    assert list(held_out.summary["fedavg"]["per_silo_unseen"]) and 3 not in prepared[1:]


def test_two_of_one_method_and_labels_of_ones_own(federation):
    made = federation.compare([co.FedAvg(), co.FedAvg()], rounds=1, quiet=True)
    assert made.methods == ["fedavg", "fedavg-2"]
    made = federation.compare({"mine": co.FedAvg()}, rounds=1, quiet=True)
    assert list(made.table().index) == ["mine"]


def test_a_learning_rate_is_the_one_given_or_searched_for_each_method(federation):
    mine = {"mine": co.FedEM(), "tuned": WithFineTuning(co.APPLE(), FineTuning()), "plain": co.FedAvg()}
    assert rates(federation.compare(mine, rounds=1, quiet=True, lr=0.1)) == dict.fromkeys(mine, 0.1)
    found = federation.compare([co.APPLE(), co.APPLE(L=1)], rounds=1, quiet=True, optimizer="adam")
    assert set(rates(found)) == {"apple", "apple-2"} and set(rates(found).values()) <= set(tuning.GRID["adam"])


def rates(comparison):
    common, tables = comparison.run.study["train"], comparison.run.study["methods"]
    return {label: (common | tables[label].get("train", {}))["lr"] for label in comparison.methods}


def test_every_method_is_exported_and_the_import_is_light():
    assert {"Columns", "Deployable"} <= set(co.__all__)  # for whoever writes a method
    assert {kind.__name__ for kind in METHODS.values()} <= set(co.__all__) and set(co.__all__) <= set(dir(co))
    for name in co.__all__:
        assert getattr(co, name).__name__ == name
    assert list(co.method_table().index) == list(METHODS)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = co.nothing
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, coterie; print(*sys.modules)"], capture_output=True, text=True, check=True
    ).stdout
    assert not re.search(r"\b(torch|pandas|numpy|rich)\b", loaded)


def test_python_splits_by_the_same_columns(tmp_path):
    frames = {name: hospital(i).assign(ward=np.arange(60) % 12) for i, name in enumerate(NAMES[:2])}
    drop = ["patient", "cost"]
    hospitals(tmp_path / "hospitals")
    for source in (frames, tmp_path / "hospitals"):
        with pytest.raises(co.BadInput, match="has no column 'wrad' for --group; did you mean 'ward'"):
            co.Federation(co.silos(source, "outcome", drop=drop, group="wrad"))
    whole = co.silos(frames, "outcome", drop=drop, group="ward", test_share=0.25, validation=0)
    fed = co.Federation(whole, model="linear")
    assert set(fed.table()["test"]) <= {10, 15, 20} and set(fed.table().sum(axis=1)) == {60}  # whole wards of 5 rows
