"""One threshold of two classes: chosen on validation rows, and the same wherever a row is called positive."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import call

from coterie.personal.file import load_model

NAMES = ("north", "south", "west")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three hospitals in which few are ill, judged by sensitivity; one of them has few rows."""
    folder = tmp_path_factory.mktemp("rare")
    (folder / "data").mkdir()
    for place, name in enumerate(NAMES):
        rng = np.random.default_rng(place)
        x = rng.normal(size=(120 if name == "west" else 600, 3))
        ill = x @ [1.0, -1.0, 0.5] + rng.normal(size=len(x)) > 2
        frame = pd.DataFrame(x, columns=list("abc")).assign(ill=np.where(ill, "A yes", "no"))
        frame.to_csv(folder / "data" / f"{name}.csv", index=False)
    words = ["run", "--silos", folder / "data", "--label", "ill", "--metric", "sensitivity", "--tune", "off", "--quiet"]
    assert call(*words, "--methods", "separate,fedavg", "--rounds", 4, "--out", folder / "out") == 0
    return folder


def read(folder: Path):
    return json.loads((folder / "out" / "summary.json").read_text("utf-8"))


def test_the_round_and_the_verdict_are_judged_at_the_threshold_that_the_tables_use(folder):
    summary, results = read(folder), pd.read_parquet(folder / "out" / "results.parquet")
    assert summary["verdict"]["measure"] == "sensitivity"
    for name, method in summary["methods"].items():
        at = results.query(f"method == '{name}' and round == {method['picked_round']} and measure == 'sensitivity'")
        table = method["measures"]["sensitivity"]
        test = at[at["split"] == "test"].set_index("silo")["value"]
        assert test.to_dict() == pytest.approx(table["silos"])
        assert at[at["split"] == "validation"]["value"].mean() == pytest.approx(table["validation"])
        assert summary["verdict"]["methods"][name]["test"] == pytest.approx(100 * table["test"])
        assert table["test"] > 0.5  # with 0.5 as the threshold hardly any of so few ill is found
    for standing in summary["verdict"]["silos"]:
        own = summary["methods"][summary["verdict"]["judged"]]["measures"]["sensitivity"]["silos"]
        assert standing["score"] == pytest.approx(100 * own[standing["silo"]])


def test_baselines_have_a_threshold_of_their_own_validation_rows(folder):
    assert read(folder)["baselines"]["logistic regression"]["measures"]["sensitivity"]["test"] > 0.5


@pytest.mark.parametrize("silo", NAMES)
def test_predict_calls_a_row_as_the_card_promises(folder, silo):
    method = read(folder)["methods"]["fedavg"]
    splits = pd.read_parquet(folder / "out" / "splits.parquet").query(f"silo == '{silo}' and split == 'test'")
    raw = pd.read_csv(folder / "data" / f"{silo}.csv").iloc[splits["row"] - 1]
    model = load_model(folder / "out" / "models" / "fedavg" / f"{silo}.safetensors")
    called = model.predict(raw)
    assert ((called["prediction"] == "A yes") == (called["probability_A yes"] >= method["thresholds"][silo])).all()
    found = (called["prediction"] == "A yes")[raw["ill"] == "A yes"].mean()
    assert found == pytest.approx(method["measures"]["sensitivity"]["silos"][silo])
    likeliest = np.where(called["probability_no"] > 0.5, "no", "A yes")
    assert model.score(raw, raw["ill"]) == pytest.approx((likeliest == raw["ill"]).mean())
