"""What installed packages bring, and a file of methods, on the command line and in study files."""

import hashlib
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import plugin
import pytest
from command import call, same, small

from coterie.personal.file import load_model
from coterie.run.assembly import Assembly
from coterie.run.method_file import lend_methods
from coterie.version import VERSION

STUDY = """
name = "toys"
[data]
name = "clouds"
spread = 0.5
[model]
name = "tanh"
[train]
rounds = 2
batch_size = 16
[engine]
rows = "all"
[methods.separate]
[methods.little]
method = "shrunk"
factor = 0.5
"""
FILE = """
from dataclasses import dataclass
from coterie.methods.fedavg import FedAvg
from coterie.options import option

@dataclass(frozen=True)
class MyMethod(FedAvg):
    share: float = option(0.5, "of something")
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every test in a folder of its own, with a study of packaged things and one of a package's."""
    monkeypatch.chdir(tmp_path)
    small(tmp_path)
    Path("toys.toml").write_text(STUDY)
    Path("my.py").write_text(FILE)
    monkeypatch.setenv("COLUMNS", "200")
    yield
    lend_methods(None)


def summary(folder):
    return json.loads(Path(folder, "summary.json").read_text())


def refused(capfd, *words):
    """The one line with which these words are refused."""
    capfd.readouterr()
    assert call(*words) == 2
    err = capfd.readouterr().err
    assert err.startswith("coterie: ") and err.count("\n") == 1, err
    return err


@pytest.fixture
def stopped(monkeypatch):
    """A function that runs a study and stops it at its last method."""

    def run(label, *words):
        train, count = Assembly.train, []

        def until(self, method, *others, **more):
            count.append(method)
            if len(count) == 2:
                raise KeyboardInterrupt
            return train(self, method, *others, **more)

        with monkeypatch.context() as patch:
            patch.setattr(Assembly, "train", until)
            assert call("run", *words, "--out", label, "--quiet") == 130

    return run


def test_a_study_names_what_a_package_brings_and_the_run_says_which(toy, capfd):
    assert call("run", "toys.toml", "--out", "out", "--quiet") == 0
    assert list(summary("out")["methods"]) == ["separate", "little"]
    assert summary("out")["versions"]["toy"] == "1.0"
    study = tomllib.loads(Path("out/study.toml").read_text())
    assert study["data"]["name"] == "clouds" and study["model"] == {"name": "tanh", "hidden": 6}
    assert study["methods"]["little"]["method"] == "shrunk"
    assert call("run", "out/study.toml", "--out", "again", "--quiet") == 0
    same(Path("out"), Path("again"))
    model = load_model(next(Path("out/models/little").glob("*.safetensors")))
    assert len(model.predict(np.zeros((5, 4), np.float32))) == 5


def test_a_packages_measure_picks_the_round_and_drives_the_verdict(toy, stopped):
    words = ["toys.toml", "--metric", "kappa"]
    assert call("run", *words, "--out", "out", "--quiet") == 0
    found, results = summary("out"), pd.read_parquet("out/results.parquet")
    assert found["verdict"]["measure"] == "kappa" and found["versions"]["toy"] == "1.0"
    assert tomllib.loads(Path("out/study.toml").read_text())["measure"]["by"] == "kappa"
    for method, scores in found["methods"].items():
        mine = results[(results["method"] == method) & (results["split"] == "validation") & (results["round"] > 0)]
        means = mine[mine["measure"] == "kappa"].groupby("round")["value"].mean().round(12)
        assert scores["picked_round"] == means.idxmax()
        assert scores["measures"]["kappa"]["test"] <= scores["measures"]["accuracy"]["test"]
    stopped("half", *words)
    assert call("run", "--resume", "half", "--quiet") == 0
    same(Path("out"), Path("half"))


def test_a_packages_names_are_taken_by_options_too(toy):
    words = ["--methods", "shrunk", "--model", "tanh", "--set", "methods.shrunk.factor=0.7", "--rounds", "1"]
    assert call("run", "small.toml", *words, "--out", "out", "--quiet") == 0
    assert tomllib.loads(Path("out/study.toml").read_text())["methods"]["shrunk"]["factor"] == 0.7


def test_a_study_of_packaged_things_imports_no_package_and_names_none(toy):
    assert call("run", "small.toml", "--out", "out", "--quiet") == 0
    assert "toy" not in sys.modules and "toy" not in summary("out")["versions"]


def test_a_stopped_run_goes_on_with_the_package_and_says_which_is_missing(toy, toy_folder, stopped, capfd, monkeypatch):
    assert call("run", "toys.toml", "--out", "whole", "--quiet") == 0
    stopped("out", "toys.toml")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [path for path in sys.path if path != str(toy_folder)])
        plugin.forget()
        said = refused(capfd, "run", "--resume", "out")
        assert "--resume out: uses toy 1.0, which is not installed; pip install toy==1.0" in said
    plugin.forget()
    assert call("run", "--resume", "out", "--quiet") == 0
    same(Path("out"), Path("whole"))


def test_what_a_package_brings_is_listed_with_its_package(toy, capfd):
    assert call("methods") == 0
    listed = " ".join(capfd.readouterr().out.split())
    assert "shrunk" in listed and listed.count("; from ") == 1 and "from toy 1.0" in listed
    assert call("methods", "shrunk") == 0
    assert "from toy 1.0" in capfd.readouterr().out
    assert call("data") == 0
    listed = " ".join(capfd.readouterr().out.split())
    assert "clouds" in listed and "public domain; from toy 1.0" in listed
    assert call("data", "clouds") == 0
    page = capfd.readouterr().out
    assert "from toy 1.0" in page and "standard deviation of a cloud" in page
    assert "there is nothing to fetch" in refused(capfd, "data", "fetch", "clouds")


def test_methods_of_a_file_go_by_their_names_and_the_run_keeps_path_and_checksum(capfd):
    words = ["--methods", "separate,my-method", "--set", "methods.my-method.share=0.25", "--method-file", "my.py"]
    assert call("run", "small.toml", *words, "--out", "out", "--quiet") == 0
    assert tomllib.loads(Path("out/study.toml").read_text())["methods"]["my-method"] == {"share": 0.25}
    assert summary("out")["versions"]["my.py"] == f"sha256:{hashlib.sha256(FILE.encode()).hexdigest()}"
    said = refused(capfd, "run", "out/study.toml")  # a study file itself runs no code
    assert "unknown method 'my-method'" in said
    assert call("run", "out/study.toml", "--method-file", "my.py", "--out", "again", "--quiet") == 0
    same(Path("out"), Path("again"))


def test_a_stopped_run_goes_on_with_the_same_file_only(stopped, capfd):
    words = ["small.toml", "--methods", "separate,my-method", "--method-file", "my.py"]
    assert call("run", *words, "--out", "whole", "--quiet") == 0
    stopped("out", *words)
    assert "--resume out: its methods are from my.py; give --method-file my.py" in refused(
        capfd, "run", "--resume", "out"
    )
    Path("other.py").write_text(FILE + "# changed\n")
    said = refused(capfd, "run", "--resume", "out", "--method-file", "other.py")
    assert "its methods are from my.py" in said and "other.py is another" in said
    assert call("run", "--resume", "out", "--method-file", "my.py", "--quiet") == 0
    same(Path("out"), Path("whole"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def", "--method-file my.py: cannot be run (SyntaxError"),
        ("import nosuch", "--method-file my.py: cannot be run (ModuleNotFoundError: No module named 'nosuch')"),
        ("from coterie.methods.fedavg import FedAvg", "--method-file my.py: defines no method"),
        (
            FILE.replace("MyMethod", "Separate"),
            f"--method-file my.py: coterie {VERSION} has a method 'separate'; rename the class",
        ),
        (None, "--method-file my.py: No such file"),
    ],
)
def test_a_file_that_brings_no_method_is_refused(text, said, capfd):
    Path("my.py").unlink() if text is None else Path("my.py").write_text(text)
    assert said in refused(capfd, "run", "small.toml", "--method-file", "my.py", "--out", "out")
    assert not Path("out").exists()


def test_a_federation_takes_no_file(capfd):
    assert "No such option" in refused(capfd, "federation", "run", "fed", "small.toml", "--method-file", "my.py")
