"""A method and a model that a package brings, between silos: each names them, and all have the same version."""

import sys
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import pandas as pd
import plugin
import pytest
from loop import NAMES, Loop, settle, silos

from coterie.data.silo import Silo
from coterie.deploy import policy
from coterie.deploy.drive import RemoteRun, study_of
from coterie.deploy.messages import Request, request
from coterie.deploy.patience import Patience
from coterie.deploy.policy import FILE, read_policy
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.methods import make
from coterie.models import build
from coterie.run.assembly import Assembly

TRAIN = {"rounds": 2, "batch_size": 8, "lr": 0.1}
STUDY = {"name": "toys", "seeds": [1], "model": {"name": "tanh"}, "train": TRAIN, "methods": {"shrunk": {}}}


def federation(folder: Path, allowed: str = 'methods = ["shrunk"]', **study: object) -> tuple[RemoteRun, Loop]:
    """Silos in this process with this policy, about to run the study."""
    sides = settle(folder / "silos")
    for side in sides.values():
        (side.folder / FILE).write_text(f'approve = "all"\n{allowed}')
    (folder / "run").mkdir()
    loop = Loop(sides)
    patience = Patience(gather=0, reply=1, silence=0, pause=0)
    return RemoteRun(folder / "run", study_of(STUDY | study), loop, lambda: list(NAMES), patience), loop


def test_silos_that_name_it_train_a_packages_method_and_model_as_a_simulation_does(toy: None, tmp_path: Path) -> None:
    fed, loop = federation(tmp_path)
    finished = fed.run("")
    assert finished.summary["versions"]["toy"] == "1.0"
    assert {str(each.job.plugins) for each in loop.asked if each.job} == {"{'toy': '1.0'}"}
    found: list[Silo] = sorted(silos(), key=lambda silo: silo.name)
    factory, _ = build({"name": "tanh"}, (5,), 3)
    outcome = Assembly(found, factory, 3, Training(**TRAIN), 1, "cpu", 1).train(make("shrunk", {}))
    keys = ["round", "silo", "split", "measure"]
    ours, theirs = (
        table[table["measure"].isin(["loss", "accuracy"])].set_index(keys)["value"].sort_index()
        for table in (finished.results, pd.concat(outcome.results))
    )
    pd.testing.assert_series_equal(ours, theirs, atol=1e-5, rtol=0, check_names=False)


def test_a_policy_takes_a_packages_method_only_where_it_is_named(toy: None, tmp_path: Path) -> None:
    assert "shrunk" not in run_path(policy.__file__)["Policy"]().methods
    with pytest.raises(BadInput, match=r"every silo refuses to train; .*method 'shrunk' is not among those allowed"):
        federation(tmp_path, allowed="")[0].run("")


def test_a_packages_method_in_a_stack_is_known_by_its_name_and_version(toy: None, tmp_path: Path) -> None:
    """A silo that names no method of a package trained one that was a member."""
    methods = {"stack": {"of": ["separate", {"method": "shrunk"}]}}
    fed, loop = federation(tmp_path, allowed="", methods=methods, model={"name": "mlp", "hidden": [4]})
    with pytest.raises(BadInput, match=r"every silo refuses to train; .*method 'shrunk' is not among those allowed"):
        fed.run("")
    assert {str(each.job.plugins) for each in loop.asked if each.job} == {"{'toy': '1.0'}"}


def test_a_policy_that_names_a_method_nobody_brings_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('methods = ["shrunk"]')
    with pytest.raises(BadInput, match="unknown method 'shrunk'"):
        read_policy(tmp_path)


@pytest.fixture
def asked(toy: None, tmp_path: Path) -> Request:
    """The first training request of such a run."""
    fed, loop = federation(tmp_path)
    fed.run("")
    return next(each for each in loop.asked if each.kind == "train")


@pytest.mark.parametrize(
    ("plugins", "said"),
    [
        ({"toy": "0.9"}, "the coordinator runs toy 0.9, this silo 1.0; install the same"),
        ({}, "the coordinator runs toy none, this silo 1.0; install the same"),
        ({"toy": "1.0", "more": "2"}, "the coordinator runs more 2, this silo none; install the same"),
    ],
)
def test_another_version_is_refused_in_words(asked: Request, plugins: dict[str, str], said: str) -> None:
    assert request(asked.head(), asked.body) == asked
    other = replace(asked, job=replace(asked.job, plugins=plugins))
    with pytest.raises(BadInput, match=said):
        request(other.head(), b"")


def test_a_silo_without_the_package_refuses_in_words(
    asked: Request, toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [path for path in sys.path if path != str(toy_folder)])
    plugin.forget()
    with pytest.raises(BadInput, match=r"the coordinator runs toy 1.0, this silo none; install the same"):
        request(asked.head(), asked.body)
