"""Figures as files."""

import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from command import call

from coterie.report.static import weight_figures

Figure = pytest.importorskip("matplotlib.figure").Figure


def test_every_figure_becomes_a_file(run_folder, tmp_path):
    assert call("figures", run_folder, "--out", tmp_path) == 0
    assert {path.stem for path in tmp_path.iterdir()} == {
        "test-accuracy", "test-loss", "train-loss", "bars", "silos", "labels", "gains", "significance",
        "heat-map-fedamp", "graph-fedamp", "trajectory-fedamp-1", "trajectory-fedamp-2", "trajectory-fedem-1",
    }  # fmt: skip
    for path in tmp_path.iterdir():
        ET.parse(path)
    text = (tmp_path / "test-accuracy.svg").read_text("utf-8")
    assert "fedamp (cloud)" in text and "test accuracy, %" in text


def test_the_same_run_gives_the_same_bytes(run_folder, tmp_path):
    for name in ("one", "two"):
        assert call("figures", run_folder, "--out", tmp_path / name) == 0
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_a_sweep_draws_scores_against_a_key_of_the_studies(run_folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run_folder, other, ignore=shutil.ignore_patterns("models", "report.html"))
    text = (other / "study.toml").read_text("utf-8")
    (other / "study.toml").write_text(text.replace("drop = 0.0", "drop = 0.5"), "utf-8")
    assert call("figures", other, run_folder, "--sweep", "train.drop", "--out", tmp_path / "out") == 0
    (drawn,) = (tmp_path / "out").iterdir()
    assert drawn.name == "sweep-train.drop.svg" and "train.drop" in drawn.read_text("utf-8")


def test_figures_that_are_refused_leave_no_folder(run_folder, tmp_path):
    for words in (("--sweep", "train.nothing"), ("--only", "nothing")):
        assert call("figures", run_folder, *words, "--out", tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()


def test_runs_of_one_study_that_differ_in_methods_are_drawn_as_one(run_folder, tmp_path):
    parts = [part(run_folder, tmp_path / "a", "separate,fedamp"), part(run_folder, tmp_path / "b", "fedem")]
    assert call("figures", run_folder, "--out", tmp_path / "whole") == 0
    assert call("figures", *parts, "--out", tmp_path / "joined") == 0
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert whole.pop("gains.svg")  # which is a verdict's, and a verdict is of one run
    assert {path.name: path.read_bytes() for path in (tmp_path / "joined").iterdir()} == whole


@pytest.mark.parametrize(
    ("methods", "words", "told"),
    [
        ("fedem", ["--rounds", "1"], "the runs differ in train; give runs that differ in methods alone"),
        ("fedem", ["--seeds", "3"], "the runs differ in seeds"),
        ("fedem", ["--set", "model.hidden=[8]"], "the runs differ in model"),
        ("fedem,fedamp", [], "fedamp is in more than one of the runs"),
    ],
)
def test_runs_that_are_not_of_one_are_not_drawn_as_one(run_folder, tmp_path, capsys, methods, words, told):
    folder = part(run_folder, tmp_path / "other", methods, *words)
    assert call("figures", run_folder, folder, "--out", tmp_path / "out") == 2
    assert told in capsys.readouterr().err and not (tmp_path / "out").exists()


def part(whole, folder, methods, *words):
    """The same study with these methods alone."""
    assert call("run", whole / "study.toml", "--methods", methods, *words, "--out", folder, "--quiet") == 0
    return folder


def test_some_figures_alone(run_folder, tmp_path):
    assert call("figures", run_folder, "--only", "bars,silos", "--out", tmp_path) == 0
    assert {path.stem for path in tmp_path.iterdir()} == {"bars", "silos"}


def test_a_method_far_below_the_others_does_not_flatten_them(run_folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run_folder, other, ignore=shutil.ignore_patterns("models", "report.html"))
    results = pd.read_parquet(other / "results.parquet")
    results.loc[results["measure"] == "accuracy", "value"] = 0.9 + results["round"] / 1000
    results.loc[(results["measure"] == "accuracy") & (results["method"] == "fedem"), "value"] = 0.1
    results = results[results["measure"] != "accuracy_cloud"]
    results.to_parquet(other / "results.parquet")
    assert call("figures", other, "--only", "test-accuracy", "--out", tmp_path) == 0
    text = (tmp_path / "test-accuracy.svg").read_text("utf-8")
    assert "fedem (below)" in text and "fedamp (below)" not in text


def test_true_groups_stand_together_in_a_heat_map():
    groups = np.array([0, 1, 0, 1])
    weights = np.array([[0, 9, 1, 0], [9, 0, 0, 1], [1, 0, 0, 9], [0, 1, 9, 0]], dtype=float)  # which they ignore
    ((_, _, draw), *_) = weight_figures("it", {"silos": groups, "groups": groups, "collaboration": weights[None]})
    axes = Figure().add_subplot()
    draw(axes)
    shown = axes.images[0].get_array()
    assert shown[:2, :2].max() == shown[2:, 2:].max() == 1  # the blocks of the groups
    assert len(axes.lines) == 2  # between the groups, across and down


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "bars,nothing"], "--only nothing: this run has no such figure; it has test-accuracy, "),
        (["--format", "gif"], "expected svg, png, pdf"),
        (["--sweep", "train.drop"], "give runs that differ in it"),
        (["--sweep", "train.nothing"], "no such number"),
    ],
)
def test_what_cannot_be_drawn_is_told(run_folder, tmp_path, capsys, words, told):
    assert call("figures", run_folder, "--out", tmp_path / "out", *words) == 2
    assert told in capsys.readouterr().err
