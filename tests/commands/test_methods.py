"""`coterie new-method`: what it writes is a method as it stands, and trains though nothing lists it."""

import subprocess
import sys
import tomllib
from importlib import import_module

import numpy as np
import plugin
import pytest
from command import call

import coterie as co
from coterie.methods import GROUPS, METHODS, grouped


def written(folder, monkeypatch, name):
    assert call("new-method", name, "--into", folder) == 0
    monkeypatch.syspath_prepend(folder)
    return folder / f"{name}.py"


@pytest.mark.slow
def test_the_skeleton_has_a_test_that_passes_as_it_stands(tmp_path, capsys):
    assert call("new-method", "first_try", "--into", tmp_path / "methods") == 0
    assert "test_first_try.py" in capsys.readouterr().out
    assert len((tmp_path / "methods/first_try.py").read_text("utf-8").splitlines()) < 60
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "methods/test_first_try.py"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0 and "1 passed" in told.stdout, told.stdout


def test_the_skeleton_does_not_pass_once_its_state_is_lost(tmp_path, monkeypatch):
    path = written(tmp_path, monkeypatch, "forgetful")
    text = path.read_text("utf-8")
    assert "Kept(w=state.w)" in text
    path.write_text(text.replace("Kept(w=state.w)", "private"), "utf-8")
    with pytest.raises(AssertionError, match="leave the personal predictions as they were"):
        co.check_method(import_module("forgetful").Forgetful())


def test_a_method_that_nothing_lists_is_trained_and_written_with_the_place_of_its_code(tmp_path, monkeypatch):
    written(tmp_path, monkeypatch, "second_try")
    kind, rng = import_module("second_try").SecondTry, np.random.default_rng(0)
    arrays = {name: (rng.normal(size=(40, 3)), rng.integers(2, size=40)) for name in ("north", "south")}
    fed = co.Federation(co.silos(arrays), model="linear")
    result = fed.train(kind(share=0.25), rounds=2, quiet=True)
    assert list(result.table().index) == ["north", "south"] and result.method == "SecondTry"
    study = (result.save(tmp_path / "out") / "study.toml").read_text("utf-8")
    assert 'method = "second_try:SecondTry"' in study and "share = 0.25" in study
    both = fed.compare([kind(share=0.25), co.Separate()], rounds=2, quiet=True)
    assert list(both.table().index) == ["SecondTry", "separate"]
    with pytest.raises(co.BadInput, match="SecondTry: share"):
        fed.train(kind(share=2.0), rounds=1, quiet=True)


def test_the_package_of_a_skeleton_brings_it_to_the_command_line(tmp_path, monkeypatch, capsys):
    assert call("new-method", "third_try", "--into", tmp_path, "--package") == 0
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]
    text = (tmp_path / "third_try.py").read_text("utf-8")
    made = plugin.install(tmp_path / "site", project["name"], project["version"], project["entry-points"], text)
    with monkeypatch.context() as patch:
        plugin.use(made, patch)
        assert call("methods", "third-try") == 0
    plugin.forget()
    page = capsys.readouterr().out
    assert "from third-try 0.1.0" in page and "share of the global model" in page


@pytest.mark.parametrize("name", ["My-Method", "class", "1st", "../up", "", "ä", "a b"])
def test_a_name_that_no_module_can_have_is_refused(name, tmp_path, capsys):
    assert call("new-method", name, "--into", tmp_path) == 2
    assert "e.g. my_method" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path, capsys):
    (tmp_path / "test_mine.py").write_text("mine")
    assert call("new-method", "mine", "--into", tmp_path) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]
    assert call("new-method", "torch", "--into", tmp_path) == 2  # it would hide PyTorch from the method itself
    (tmp_path / "file").write_text("")
    assert call("new-method", "other", "--into", tmp_path / "file") == 2
    assert "coterie: --into" in capsys.readouterr().err


def test_methods_are_listed_by_what_their_silos_share(capsys):
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(METHODS.packaged)
    assert call("methods") == 0
    printed = capsys.readouterr().out
    places = [printed.index(f"\n{name} ") for name in listed]
    assert places == sorted(places)
    assert printed.index("share a part of the model") < printed.index("\nfedper ") < printed.index("\nfedrep ")


def test_what_a_package_brings_comes_after_the_groups(toy):
    *groups, last = grouped().items()
    assert [what for what, _ in groups] == list(GROUPS)
    assert last[0] == "brought by packages"
    assert set(last[1]) == set(METHODS) - set(METHODS.packaged)
