"""Own data are run with three seeds where that takes less than a minute, unless their number is given."""

import json
import tomllib
from pathlib import Path

import pytest
from command import call
from own_silos import hospitals

from coterie.run import seeds
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
