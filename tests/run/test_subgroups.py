"""`--subgroup COLUMN`: how well the models do in each part of the silos' rows."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import call

from coterie.measure.measures import measure_of

NAMES = ("north", "south")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two hospitals whose second sex is harder to tell; a third sex has few rows, and sex is no feature."""
    folder = tmp_path_factory.mktemp("subgroups")
    (folder / "data").mkdir()
    for place, name in enumerate(NAMES):
        rng = np.random.default_rng(place)
        x, age = rng.normal(size=(400, 2)), rng.uniform(20, 80, 400).round(1)
        sex = rng.choice(["f", "m", "x"], 400, p=[0.48, 0.48, 0.04])
        ill = x @ [2.0, -2.0] + np.where(sex == "m", 6.0, 0.3) * rng.normal(size=400) > 0
        frame = pd.DataFrame(x, columns=["a", "b"]).assign(age=age, sex=sex, ill=np.where(ill, "yes", "no"))
        frame.loc[:3, "age"] = np.nan
        frame.to_csv(folder / "data" / f"{name}.csv", index=False)
    words = ["run", "--silos", folder / "data", "--label", "ill", "--drop", "sex", "--tune", "off", "--quiet"]
    words += ["--subgroup", "sex", "--subgroup", "age", "--seeds", "0,1", "--rounds", 2]
    assert call(*words, "--methods", "separate,fedavg", "--out", folder / "out") == 0
    return folder


def test_every_level_has_its_rows_and_measures_of_each_silo_and_of_all(folder):
    table = pd.read_parquet(folder / "out" / "subgroups.parquet")
    assert list(table.columns) == ["method", "column", "level", "silo", "n", "measure", "value", "low", "high"]
    predictions = pd.read_parquet(folder / "out" / "predictions.parquet").query("split == 'test'")
    raw = pd.concat([pd.read_csv(folder / "data" / f"{name}.csv").assign(silo=name) for name in NAMES])
    raw["row"] = raw.groupby("silo").cumcount() + 1
    rows = predictions.merge(raw[["silo", "row", "sex"]], on=["silo", "row"])
    for silo in (*NAMES, None):
        mine = rows if silo is None else rows[rows["silo"] == silo]
        found = table[(table["column"] == "sex") & (table["method"] == "fedavg") & (table["measure"] == "accuracy")]
        found = found[found["silo"].isna() if silo is None else found["silo"] == silo].set_index("level")
        for level in ("f", "m"):
            own = mine[(mine["method"] == "fedavg") & (mine["sex"] == level)]
            by_seed = own.groupby("seed")["value"]
            assert found.loc[level, "value"] == pytest.approx(by_seed.mean().mean())
            assert found.loc[level, "n"] == round(by_seed.size().mean())
            assert found.loc[level, "low"] < found.loc[level, "value"] < found.loc[level, "high"]


def test_a_small_group_is_named_and_not_measured(folder):
    summary = json.loads((folder / "out" / "summary.json").read_text("utf-8"))["subgroups"]
    few = summary["sex"]["x"]["silos"]["north"]
    assert 0 < few["n"] < 10 and few["methods"] is None
    found = summary["sex"]["f"]
    assert found["n"] > found["silos"]["north"]["n"]
    own = found["methods"]["fedavg"]
    assert set(own) == {"value", "low", "high", "measures"} and own["measures"]["accuracy"] == own["value"]


def test_a_number_is_cut_into_quarters_and_missing_values_are_a_group(folder):
    levels = json.loads((folder / "out" / "summary.json").read_text("utf-8"))["subgroups"]["age"]
    assert [name.split()[0] for name in levels if name != "missing"] == ["up", "above", "above", "above"]
    sizes = [each["n"] for name, each in levels.items() if name != "missing"]
    assert max(sizes) - min(sizes) <= 6


def test_the_study_and_the_report_have_them(folder):
    study = tomllib.loads((folder / "out" / "study.toml").read_text("utf-8"))
    assert study["measure"]["subgroups"] == ["sex", "age"] and "subgroups" not in study["data"]
    page = (folder / "out" / "report.html").read_text("utf-8")
    assert "Subgroups by sex" in page and "fewer than 10 test rows" in page
    assert measure_of("accuracy").title in page


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("sx", "has no column 'sx' for --subgroup"),
        ("code", "has 40 levels"),
        ("ill", "--subgroup ill: is the label"),
        ("day", "--subgroup day: holds dates"),
    ],
)
def test_mistakes_are_one_line(tmp_path, column, said, capfd):
    data = tmp_path / "data"
    data.mkdir()
    frame = pd.DataFrame({"a": range(40), "code": [f"c{i}" for i in range(40)], "ill": ["yes", "no"] * 20}).assign(
        day="2024-05-06"
    )
    frame.to_csv(data / "north.csv", index=False)
    words = ["run", "--silos", data, "--label", "ill", "--drop", "code", "--subgroup", column]
    assert call(*words, "--out", tmp_path / "out") == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1


def test_only_own_tables_have_columns(tmp_path, capfd):
    assert call("run", "--subgroup", "sex", "--out", tmp_path / "out") == 2
    assert "go with --silos FOLDER" in capfd.readouterr().err
    study = Path(tmp_path, "s.toml")
    study.write_text('[measure]\nsubgroups = ["sex"]\n[methods.fedavg]\n', "utf-8")
    assert call("run", study, "--out", tmp_path / "out") == 2
    assert "[measure] subgroups: are columns of your own tables" in capfd.readouterr().err
