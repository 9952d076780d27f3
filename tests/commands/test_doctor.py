"""`coterie doctor`, and help that prints as it is meant."""

import tomllib
from pathlib import Path

import pytest
from command import call

from coterie.commands import doctor
from coterie.version import VERSION

REQUIRED = [
    "torch>=2.11",
    "scikit-learn>=1.5",
    'flwr<1.42,>=1.41; extra == "flower"',
    'onnx>=1.19; extra == "onnx"',
    'onnxscript>=0.5; extra == "onnx"',
    'ruff>=0.9; extra == "dev"',
    'coterie[privacy]; extra == "dev"',
]
HERE = {"torch": "2.13.0", "onnx": "1.19.0", "flwr": "1.41.0"}


def printed(capfd, monkeypatch) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    assert call("doctor") == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out


def test_it_lists_versions_the_device_and_the_data_folder(capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    out = printed(capfd, monkeypatch)
    assert VERSION in out and "thread" in out and str(tmp_path) in out and "SurvSet" in out


def test_what_is_missing_comes_with_how_to_get_it(capfd, monkeypatch):
    monkeypatch.setattr(doctor, "requires", lambda package: REQUIRED)
    monkeypatch.setattr(doctor, "installed", HERE.get)
    lines = {line.split()[0]: line for line in printed(capfd, monkeypatch).splitlines() if line.split()}
    assert lines["torch"].split() == ["torch", "2.13.0"]
    assert "missing: pip install scikit-learn" in lines["scikit-learn"]
    assert "flwr 1.41.0" in lines["[flower]"]
    assert "export: missing onnxscript; pip install 'coterie[onnx]'" in lines["[onnx]"]
    assert "[dev]" not in lines and "ruff" not in str(lines)
    assert "All that Coterie needs is here" not in str(lines)
    monkeypatch.setattr(doctor, "installed", {**HERE, "scikit-learn": "1.9"}.get)
    assert "All that Coterie needs is here" in printed(capfd, monkeypatch)


def test_every_extra_has_its_purpose():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert doctor.PURPOSE.keys() == project["optional-dependencies"].keys() - {*doctor.FOR_ITS_MAKERS}


def test_a_data_folder_that_is_not_there_yet_is_no_fault(capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "later"))
    assert "made when a set is fetched" in printed(capfd, monkeypatch)


@pytest.mark.parametrize("command", ["run", "studies", "figures"])
def test_help_shows_defaults_as_they_are_meant(capfd, command):
    assert call(command, "--help") == 0
    out = capfd.readouterr().out
    assert "[default: " in out and "\\" not in out
