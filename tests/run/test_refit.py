"""Data split by time: a method is judged on the last rows, and what is saved has then learned from them too."""

import json

import numpy as np
import pandas as pd
import pytest
from command import call

from coterie.measure.verdict_words import consortium
from coterie.personal.file import load_model


def rows(rng, count, new):
    """Until something new comes, `a` decides; then all are ill."""
    a = rng.normal(size=count)
    return pd.DataFrame({"a": a, "kind": np.where(new, 1, 0), "ill": np.where((a > 0) | new, "yes", "no")})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two silos in which the new kind comes with the last fifth of the rows."""
    folder = tmp_path_factory.mktemp("drift")
    (folder / "data").mkdir()
    for place, name in enumerate(("north", "south")):
        frame = rows(np.random.default_rng(place), 200, np.arange(200) >= 160).assign(day=np.arange(200))
        frame.loc[:2, "kind"] = 1  # so that the column is there for training
        frame.to_csv(folder / "data" / f"{name}.csv", index=False)
    words = ["run", "--silos", folder / "data", "--label", "ill", "--tune", "off", "--set", "train.lr=0.5", "--quiet"]
    for out, by in (("out", ["--time", "day"]), ("drawn", ["--drop", "day"])):
        assert call(*words, *by, "--methods", "separate,fedavg", "--rounds", 30, "--out", folder / out) == 0
    return folder


def summary(folder):
    return json.loads((folder / "summary.json").read_text("utf-8"))


def test_the_saved_model_knows_what_the_judged_one_had_not_seen(folder):
    fresh = rows(np.random.default_rng(9), 500, np.ones(500, bool))
    found = summary(folder / "out")
    for method in ("separate", "fedavg"):
        judged = found["methods"][method]["measures"]["accuracy"]["test"]
        saved = load_model(folder / "out" / "models" / method / "north.safetensors")
        assert judged < 0.8
        assert saved.score(fresh, fresh["ill"]) > 0.95
        assert saved.about["trained_on"] == "train and test rows"
        assert found["methods"][method]["refit_rounds"] == 30


def test_card_and_report_tell_of_it(folder):
    deploy = folder / "out" / "deploy" / "north"
    card = json.loads((deploy / "card.json").read_text("utf-8"))
    saved = load_model(deploy / "model.safetensors")
    assert card["round"] == int(saved.about["round"])
    assert card["temperature"] == pytest.approx(float(saved.about["temperature"]))
    assert "trained again with" in (deploy / "card.md").read_text("utf-8")
    assert "trained again with the test rows" in (folder / "out" / "report.html").read_text("utf-8")
    assert any("trained again with the test rows" in line for line in consortium(summary(folder / "out")["verdict"]))


def test_rows_that_are_drawn_are_tested_on_and_nothing_else(folder):
    saved = load_model(folder / "drawn" / "models" / "fedavg" / "north.safetensors")
    found = summary(folder / "drawn")
    assert "trained_on" not in saved.about and "refit_rounds" not in found["methods"]["fedavg"]
    assert "trained again" not in (folder / "drawn" / "report.html").read_text("utf-8")
