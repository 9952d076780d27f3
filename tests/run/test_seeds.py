"""Own data are run with three seeds where that takes less than a minute, unless their number is given."""

import json
import tomllib
from pathlib import Path

import pytest
from command import call
from own_silos import hospital, hospitals

from coterie.run import seeds
from coterie.run.experiment import prepare
from coterie.run.seeds import with_seeds
from coterie.studies.own import OWN
from coterie.studies.study import check

WORDS = ("run", "--silos", "hospitals", "--label", "outcome", "--drop", "patient,cost", "--methods", "separate,fedavg")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path / "hospitals", rows=40)


def seeds_of(folder: str) -> list[int]:
    return tomllib.loads(Path(folder, "study.toml").read_text("utf-8"))["seeds"]


def test_there_are_three_where_there_is_time_and_the_reason_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(seeds, "MINUTE", 1e9)
    assert call(*WORDS, "--rounds", 1, "--out", "a") == 0
    assert "3 seeds, because two more take about" in capsys.readouterr().out
    assert seeds_of("a") == [0, 1, 2]
    found = json.loads(Path("a/summary.json").read_text("utf-8"))["methods"]["fedavg"]["per_seed"]
    assert [each["seed"] for each in found] == [0, 1, 2]


def test_there_is_one_where_there_is_not_and_the_others_can_be_had(monkeypatch, capsys):
    monkeypatch.setattr(seeds, "MINUTE", 0.0)
    assert call(*WORDS, "--rounds", 1, "--out", "a") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 seed, because two more take about" in out and "give seeds 0,1,2 to have them" in out
    assert seeds_of("a") == [0]


@pytest.mark.parametrize(("words", "expected"), [(["--seeds", "3"], [3]), (["--tune", "off"], [0])])
def test_what_is_given_wins_and_without_a_search_there_is_one(monkeypatch, capsys, words, expected):
    monkeypatch.setattr(seeds, "MINUTE", 1e9)
    assert call(*WORDS, "--rounds", 1, *words, "--out", "a") == 0
    assert "because two more" not in capsys.readouterr().out and seeds_of("a") == expected


def test_a_study_that_was_stopped_before_it_decided_decides_again():
    study = check({**OWN, "data": {"name": "own", "path": "hospitals", "label": "outcome"}})
    assert study.as_table()["seeds"] == "auto" and check(study.as_table()).auto_seeds
    assert not study.fixed().auto_seeds


def decided(folder: str, measure_every: int = 1) -> tuple[int, float]:
    """How many seeds own data in a folder get, and what one of them is thought to take."""
    table = {**OWN, "data": {"name": "own", "path": folder, "label": "outcome", "drop": ["patient", "cost"]}}
    table["train"] = table["train"] | {"measure_every": measure_every}
    study, federation = prepare(check(table).pinned(), 0)
    return len(with_seeds(study, federation)[0].seeds), seeds.seconds(study, federation)


def test_work_decides_and_no_clock(monkeypatch):
    monkeypatch.setattr(seeds, "MINUTE", 60.0)
    Path("many").mkdir()
    for place in range(60):
        hospital(place % 4, 30).to_csv(f"many/{place}.csv", index=False)
    few, many = decided("hospitals"), decided("many")
    assert (few[0], many[0]) == (3, 1)
    assert decided("hospitals") == few
    assert decided("many", measure_every=10)[1] < many[1] / 3
