"""What has a name: packaged things, and what installed packages bring, imported when asked for and not before."""

import sys
from types import SimpleNamespace

import plugin
import pytest

from coterie import registry
from coterie.data.catalog import CATALOG
from coterie.errors import BadInput
from coterie.methods import METHODS, make, method_class, name_of, written
from coterie.methods.fedavg import FedAvg
from coterie.models import MODELS, build


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that installs a package of one module for one test."""

    def make(name, entries, text=""):
        plugin.use(plugin.install(tmp_path / name, name, "0.3", entries, text), monkeypatch)

    yield make
    monkeypatch.undo()
    plugin.forget()


def test_what_a_package_brings_is_listed_without_importing_it_and_imported_when_used(toy):
    assert "shrunk" in METHODS and "shrunk" in [*METHODS] and len(METHODS) == len([*METHODS])
    assert "tanh" in MODELS and "clouds" in CATALOG
    assert METHODS["fedavg"] is FedAvg and METHODS.origin("shrunk") == ("toy", "1.0")
    assert "toy" not in sys.modules
    assert METHODS["shrunk"].__module__ == "toy"


def test_without_the_package_its_names_are_unknown():
    assert "shrunk" not in METHODS and METHODS.origin("shrunk") is None is METHODS.origin("fedavg")
    with pytest.raises(KeyError):
        METHODS["shrunk"]


def test_a_packages_method_is_made_and_written_by_its_name(toy):
    method = make("mine", {"method": "shrunk", "factor": 0.5, "clip_update": {"norm": 1.0}})
    assert name_of(method) == "shrunk"
    assert written("mine", method)["method"] == "shrunk" and written("shrunk", method)["factor"] == 0.5
    assert "method" not in written("shrunk", method)


def test_a_name_nearly_right_is_answered_with_the_packages(toy):
    with pytest.raises(BadInput, match="unknown method 'shrink'; did you mean 'shrunk'"):
        method_class("shrink")
    with pytest.raises(BadInput, match="unknown model 'tan'; did you mean 'tanh'"):
        build({"name": "tan"}, (4,), 3)
    assert "toy" not in sys.modules


def test_a_package_cannot_take_the_name_of_a_packaged_thing(installed):
    installed("other", {"coterie.methods": {"fedavg": "other:Mine"}})
    for use in (lambda: METHODS["fedavg"], lambda: dict(METHODS)):
        with pytest.raises(BadInput, match=r"method 'fedavg': brought by coterie 0\S+ and by other 0.3; rename"):
            use()
    assert METHODS["fedprox"]


def test_two_packages_cannot_share_a_name(toy, installed):
    installed("other", {"coterie.data": {"clouds": "other:Mine"}})
    with pytest.raises(BadInput, match=r"data set 'clouds': brought by .* and by .*; rename") as told:
        CATALOG["clouds"]
    assert "toy 1.0" in str(told.value) and "other 0.3" in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nosuch", "ModuleNotFoundError: No module named 'nosuch'"),
        ("1 / 0", "ZeroDivisionError"),
        ("def", "SyntaxError"),
        ("", "AttributeError"),
        ("Mine = 3", "has 3, not a class made from coterie.engine.method.Method"),
    ],
)
def test_a_package_that_does_not_work_matters_only_to_who_uses_it(installed, text, said):
    installed("broken", {"coterie.methods": {"mine": "broken:Mine"}}, text)
    assert "mine" in METHODS and METHODS["fedavg"] is FedAvg and name_of(FedAvg()) == "fedavg"
    with pytest.raises(BadInput, match=r"method 'mine': broken 0.3 ") as told:
        METHODS["mine"]
    assert said in str(told.value) and "\n" not in str(told.value)


def test_models_and_data_of_the_wrong_form_are_refused(installed):
    installed("broken", {"coterie.models": {"mine": "broken:x"}, "coterie.data": {"mine": "broken:x"}}, "x = 3")
    with pytest.raises(BadInput, match=r"model 'mine': broken 0.3 has 3, not a coterie.models.Architecture"):
        MODELS["mine"]
    with pytest.raises(BadInput, match=r"data set 'mine': broken 0.3 has 3, not a coterie.data.catalog.Entry"):
        CATALOG["mine"]


def test_entry_points_of_another_library_are_taken(toy, monkeypatch):
    """Once importlib_metadata was imported, as some packages do, the standard library gives that package's own."""
    importlib_metadata = pytest.importorskip("importlib_metadata")
    theirs = [importlib_metadata.EntryPoint("shrunk", "toy:Shrunk", "coterie.methods")]
    dist = SimpleNamespace(name="toy", version="1.0")
    made = [SimpleNamespace(name=each.name, value=each.value, group=each.group, dist=dist) for each in theirs]
    monkeypatch.setattr(registry, "entry_points", lambda group: made if group == "coterie.methods" else [])
    registry.installed.cache_clear()
    assert METHODS["shrunk"].__module__ == "toy"
