"""The report made again from a folder."""

import shutil

import numpy as np
import pytest
from command import call

from coterie.errors import BadInput
from coterie.runs.read import read_run


def test_the_report_made_again_is_the_same(run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "out")  # where links to its models lead to the same places
    assert call("report", tmp_path / "out", "--out", tmp_path / "out" / "again.html") == 0
    assert (tmp_path / "out" / "again.html").read_bytes() == (run_folder / "report.html").read_bytes()


def test_the_folder_holds_all_that_the_report_shows(run_folder):
    run = read_run(run_folder)
    assert list(run.methods) == ["separate", "fedamp", "fedem"]
    assert set(run.traces) == {"fedamp", "fedem"} and "pi" in run.traces["fedem"]
    assert run.labels is not None and run.labels["count"].sum() > 0
    assert run.verdict is not None and len(run.verdict["silos"]) == 6
    assert run.significance is not None and len(run.significance) == 3
    assert run.study["train"]["rounds"] == 2 and run.about["command"].startswith("coterie run")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.json", b"{"),
        ("summary.json", b"[]"),
        ("summary.json", b'{"study": "x", "methods": {"a": {}}}'),
        ("study.toml", b"= ="),
        ("results.parquet", b"not parquet"),
        ("labels.parquet", b""),
        ("collaboration/fedamp.npz", b"not a zip"),
    ],
)
def test_a_damaged_folder_is_told_in_a_line(run_folder, tmp_path, capsys, file, content):
    shutil.copytree(run_folder, tmp_path / "run", ignore=shutil.ignore_patterns("models", "report.html"))
    (tmp_path / "run" / file).write_bytes(content)
    assert call("report", tmp_path / "run") == 2
    assert "damaged" in capsys.readouterr().err
    assert not (tmp_path / "run" / "report.html").exists()


def test_an_array_of_objects_is_not_unpickled(run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "run", ignore=shutil.ignore_patterns("models", "report.html"))
    np.savez(tmp_path / "run" / "collaboration" / "fedamp.npz", silos=np.array([{"a": 1}], dtype=object))
    with pytest.raises(BadInput, match=r"holds Python objects"):
        read_run(tmp_path / "run")


def test_what_cannot_be_written_is_told_in_a_line(run_folder, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert call("report", run_folder, "--out", tmp_path / "file" / "report.html") == 2
    assert "give a place that can be written" in capsys.readouterr().err


def test_a_folder_that_is_not_there(tmp_path, capsys):
    assert call("report", tmp_path / "none") == 2
    assert "no such folder" in capsys.readouterr().err
