"""Kept runs that are run once more (bench/again.py)."""

import json
import shutil
import tomllib
from pathlib import Path

import again
import keep
import pandas as pd
import pytest
from command import call, small
from finished_runs import SINCE

from coterie.studies import study as studies

KEPT = Path(__file__).parents[1] / "docs" / "results" / "runs"
ON_A_CPU = [path for path in sorted(KEPT.iterdir()) if again.on_a_cpu(path)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder of kept runs, of which one is small."""
    folder = tmp_path_factory.mktemp("kept")
    assert call("run", small(folder, **{"rounds = 2": "rounds = 4"}), "--device", "cpu", "--out", folder / "run") == 0
    keep.keep(folder / "run", folder / "runs" / "small")
    return folder / "runs"


@pytest.fixture
def other(kept, tmp_path):
    """The same to write to."""
    return shutil.copytree(kept, tmp_path / "runs")


def run(kept, out, *words):
    return again.main([*words, "--runs", str(kept), "--out", str(out)])


def changed(runs, value):
    """One silo's accuracy after round 2 is another in what was kept of fedamp."""
    path = runs / "small" / "results.parquet"
    results = pd.read_parquet(path)
    one = (results["method"] == "fedamp") & (results["round"] == 2) & (results["measure"] == "accuracy")
    results.loc[results.index[one][0], "value"] += value
    results.to_parquet(path)


def test_the_same_code_gives_the_same_figures_and_what_is_done_is_not_run_again(kept, tmp_path, capsys, monkeypatch):
    assert run(kept, tmp_path / "out", "--seeds", "0") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["small separate seed 0", "small fedamp seed 0"]
    assert lines[1].endswith("accuracy the same in 5 rounds; accuracy_cloud the same in 5 rounds")
    monkeypatch.setattr(again.experiment, "run_into", None)
    assert run(kept, tmp_path / "out", "--seeds", "0") == 0
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize("words", [[], ["nowhere"]])
def test_from_any_folder_the_kept_runs_are_found_and_what_is_not_kept_is_said_in_a_line(
    words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        again.main([*words, "--seeds", "99"])
    said = "keeps no nowhere" if words else "nothing of these names, seeds and methods is kept"
    assert said in capsys.readouterr().err


def test_fewer_rounds_are_the_beginning_also_of_a_schedule(kept, tmp_path, capsys):
    assert run(kept, tmp_path / "out", "--rounds", "3", "--methods", "fedamp") == 0
    assert "accuracy the same in 4 rounds" in capsys.readouterr().out
    table = tomllib.loads((KEPT / "em-table2-synthetic" / "study.toml").read_text("utf-8"))
    assert [again.one(table, "fedavg", 0, rounds).training.schedule_rounds for rounds in (20, 200, None)] == [200, 0, 0]


@pytest.mark.parametrize(("value", "code"), [(0.01, 0), (0.1, 1)])
def test_what_is_apart_is_said_and_beyond_rounding_is_the_exit_code(other, tmp_path, capsys, value, code):
    changed(other, value)
    assert run(other, tmp_path / "out", "--methods", "fedamp") == code
    line, last = capsys.readouterr().out.splitlines()
    assert (
        f"apart from round 2 on, at most {value * 100 / 6:.2f} points in the mean, {value * 100:.2f} of a silo" in line
    )
    assert line.endswith("OTHERWISE") == bool(code)
    assert f": {code} further apart" in last


def test_a_score_that_pages_show_counts_too(other, tmp_path, capsys):
    path = other / "small" / "summary.json"
    summary = json.loads(path.read_text("utf-8"))
    summary["methods"]["fedamp"]["per_seed"][0]["val_picked"] -= 2
    path.write_text(json.dumps(summary), "utf-8")
    assert run(other, tmp_path / "out", "--methods", "fedamp") == 1
    assert "val_picked" in capsys.readouterr().out


def test_a_score_of_figures_that_are_the_same_is_another_by_no_rounding_but_on_purpose(kept, tmp_path):
    same, off = again.Apart("accuracy", 9, None, 0.0, 0.0), again.Apart("accuracy", 9, 5, 0.1, 0.001)
    for apart, code in ((same, True), (off, False)):
        assert again.beyond([apart], {"val_picked": (90.0, 90.2)}, 0.5) is code
    assert not again.beyond([same], {"val_picked": (90.0, 90.2)}, 0.5, [SINCE["99aaa6f"]])
    assert again.beyond([same], {"bmta": (90.0, 90.2)}, 0.5, [SINCE["99aaa6f"]])


def test_what_was_changed_on_purpose_is_said_and_is_no_fault(other, tmp_path, capsys):
    changed(other, 0.1)
    path = other / "small" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"lacks": ["947ae85"]}), "utf-8")
    assert run(other, tmp_path / "out") == 0
    separate, fedamp, _ = capsys.readouterr().out.splitlines()
    assert "since then" not in separate and fedamp.endswith("since then the pull is an exact proximal step")


def test_what_was_not_kept_is_refused(kept, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(kept, tmp_path / "out", "--methods", "fedem")
    assert "nothing of these" in capsys.readouterr().err


def test_what_is_no_longer_measured_is_apart():
    index = pd.MultiIndex.from_tuples([(0, "a", "accuracy"), (0, "a", "accuracy_cloud")], names=again.KEYS)
    was = pd.Series([0.5, 0.5], index)
    found = list(again.compared(was, was.iloc[:1]))
    assert [each.since for each in found] == [None, 0]
    assert [each.since for each in again.compared(was.iloc[:1], was)] == [None]  # one that came later
    assert again.beyond(found, {}, 0.5)
    assert again.beyond([], {}, 0.5)


@pytest.mark.parametrize("folder", ON_A_CPU, ids=lambda folder: folder.name)
def test_kept_studies_mean_what_they_meant(folder):
    table = tomllib.loads((folder / "study.toml").read_text("utf-8"))
    then = again.as_then(table)
    assert studies.check(then).as_table()["data"].get("test", 0) == table["data"].get("test", 0)
    assert then["methods"].keys() == table["methods"].keys()
    if folder.name == "synthetic-alike":
        assert then["train"]["patience"] == 0
        assert "first" not in then["methods"]["apple"]  # without a budget
