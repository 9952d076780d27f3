"""Comparisons, figures and significance go by the measure that a run was judged by, and by another where asked."""

import json

import pandas as pd
import pytest
from command import call, small


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs judged by log-loss, of which less is better, and one judged by accuracy."""
    folder = tmp_path_factory.mktemp("by")
    study = small(folder)
    for name, words in {"a": [], "b": ["--set", "train.lr=0.3"], "c": ["--metric", "accuracy"]}.items():
        words = ["--metric", "log_loss", *words, "--quiet", "--out", folder / name]
        assert call("run", study, *words) == 0
    return folder


def summary(folder):
    return json.loads((folder / "summary.json").read_text("utf-8"))


def test_significance_is_of_the_measure_of_the_verdict(runs):
    found = summary(runs / "a")
    own, other = (found["methods"][name]["measures"]["log_loss"]["silos"] for name in ("separate", "fedamp"))
    (pair,) = found["significance"]
    assert pair["measure"] == "log_loss"
    assert pair["mean_difference"] == pytest.approx(sum(own[silo] - other[silo] for silo in own) / len(own))


def test_runs_are_compared_by_their_own_measure_or_by_the_one_asked_for(runs, capsys):
    means = [summary(runs / name)["methods"]["fedamp"]["measures"] for name in "ab"]
    assert call("compare", runs / "a", runs / "b") == 0
    out = capsys.readouterr().out
    assert "Test log-loss" in out and all(f"{each['log_loss']['test']:.4g}" in out for each in means)
    assert call("compare", runs / "a", runs / "b", "--metric", "balanced_accuracy") == 0
    out = capsys.readouterr().out
    assert "Test balanced accuracy, %" in out and f"{100 * means[0]['balanced_accuracy']['test']:.2f}" in out
    assert call("compare", runs / "a", runs / "c") == 2
    assert "judged by log_loss and by accuracy; compare like with like, or give --metric" in capsys.readouterr().err
    assert call("compare", runs / "a", runs / "c", "--metric", "accuracy") == 0
    assert "Val-picked test accuracy, %" in capsys.readouterr().out
    assert call("compare", runs / "a", runs / "c", "--metric", "acuracy") == 2
    assert "did you mean 'accuracy'?" in capsys.readouterr().err


def test_figures_are_of_the_measure_of_the_run_or_of_the_one_asked_for(runs, tmp_path):
    drawn = {"silos": "test log-loss", "bars": "test log-loss", "test-log_loss": "test log-loss"}
    assert call("figures", runs / "a", "--out", tmp_path) == 0
    for name, title in drawn.items():
        assert title in (tmp_path / f"{name}.svg").read_text("utf-8"), name
    assert call("figures", runs / "a", "--out", tmp_path, "--metric", "accuracy", "--only", "silos,test-accuracy") == 0
    assert "test accuracy, %" in (tmp_path / "silos.svg").read_text("utf-8")
    words = ["figures", runs / "a", runs / "b", "--sweep", "train.lr", "--out", tmp_path]
    assert call(*words, "--metric", "brier") == 0
    assert "test Brier score" in (tmp_path / "sweep-train.lr.svg").read_text("utf-8")


def test_a_run_judged_by_accuracy_keeps_its_columns(runs):
    assert list(pd.DataFrame(summary(runs / "c")["significance"]).columns) == [
        "method", "other", "silos", "mean_difference", "p", "p_holm", "measure",
    ]  # fmt: skip
