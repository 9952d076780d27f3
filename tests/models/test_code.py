"""A model of one's own, by import path or in Python."""

import pytest
from torch import nn

from coterie.errors import BadInput
from coterie.models import build
from coterie.models.code import code_name, factory, load_code
from coterie.studies.study import check

MINE = """
from torch import nn
class Plain(nn.Linear):
    def __init__(self):
        super().__init__(8, 3)
class Sized(nn.Linear):
    def __init__(self, inputs, outputs, bias=True):
        super().__init__(inputs, outputs, bias)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mynets.py").write_text(MINE)


def test_a_class_of_the_folder_one_works_in_is_found():
    for name in ("Plain", "Sized"):
        for path in ("mynets", "mynets.py"):
            made = factory(load_code(f"{path}:{name}"), (8,), 3)()
            assert (made.in_features, made.out_features) == (8, 3)


def test_images_are_given_by_their_shape_and_modules_as_they_are():
    seen = []
    factory(lambda inputs, outputs: seen.append((inputs, outputs)) or nn.Identity(), (1, 8, 8), 3)()
    assert seen == [((1, 8, 8), 3)]
    module = nn.Linear(2, 2)
    assert factory(module, (2,), 2) is module
    assert code_name(module) == "torch.nn.modules.linear:Linear" and code_name(nn.Linear).endswith(":Linear")


def test_the_number_of_outputs_is_given_by_name_also_where_it_has_a_default():
    def by_name(width=4, num_classes=1000):
        return nn.Linear(width, num_classes)

    def after_inputs(inputs, hidden=64, *, n_classes=10):
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Linear(hidden, n_classes))

    assert factory(by_name, (4,), 3)().out_features == 3
    made = factory(after_inputs, (4,), 3)()
    assert (made[0].in_features, made[0].out_features, made[1].out_features) == (4, 64, 3)
    with pytest.raises(BadInput, match=r"by_name\(num_classes=-3\) fails: "):
        factory(by_name, (4,), -3)()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere.at.all:Net", "nowhere.at.all cannot be imported"),
        (":Net", "no module cannot be imported"),
        ("mynets:None_such", "mynets has no None_such"),
        ("mynets:", "mynets has no class"),
    ],
)
def test_what_cannot_be_imported_is_named(path, said):
    with pytest.raises(BadInput, match=said):
        load_code(path)


def test_what_makes_no_module_is_refused():
    with pytest.raises(BadInput, match=r"makes a int, not an nn.Module"):
        factory(lambda: 3, (8,), 3)()
    with pytest.raises(BadInput, match=r"model: a int; give an nn.Module"):
        factory(3, (8,), 3)
    with pytest.raises(BadInput, match="fails: "):
        factory(lambda a, b, c: nn.Identity(), (8,), 3)()


def test_a_study_file_runs_no_code():
    table = {"data": {"name": "digits"}, "model": {"name": "mynets:Plain"}, "methods": {"separate": {}}}
    with pytest.raises(BadInput, match="a study runs no code; give --model mynets:Plain on the command line"):
        check(table)
    study = check(table, code="mynets:Plain")
    assert study.as_table()["model"] == {"name": "mynets:Plain"} and study.code.__name__ == "Plain"


def test_auto_is_chosen_by_the_data():
    assert build({"name": "auto"}, (), 0)[1] == {"name": "auto"}
    assert build({"name": "auto"}, (8,), 3, samples=20)[1]["name"] == "linear"
    assert build({"name": "auto"}, (8,), 3, samples=200)[1]["name"] == "mlp"
    table = build({"name": "auto"}, (3, 32, 32), 3, samples=20)[1]
    assert table["name"] == "cnn" and build(table, (3, 32, 32), 3)[1] == table
    with pytest.raises(BadInput, match="chooses all by itself"):
        build({"name": "auto", "hidden": [3]}, (8,), 3)


def test_what_a_name_gives_is_given_by_name_and_nothing_else_in_its_place():
    def turned(num_classes, inputs):
        return nn.Linear(inputs, num_classes)

    def styled(inputs=8, outputs="logits"):
        assert outputs == "logits"
        return nn.Linear(inputs, 3)

    def wide(inputs, width, num_classes=10):  # was given ten classes for its width
        raise AssertionError

    for thing in (turned, styled):
        made = factory(thing, (8,), 3)()
        assert (made.in_features, made.out_features) == (8, 3)
    with pytest.raises(BadInput, match=r"wide needs inputs, width beside num_classes; give a function of inputs and"):
        factory(wide, (8,), 10)


def test_a_model_that_fails_without_a_word_is_refused_by_the_kind_of_its_error() -> None:
    def silent(inputs: int, outputs: int) -> nn.Module:
        raise ValueError

    with pytest.raises(BadInput, match=r"fails: ValueError"):
        factory(silent, (5,), 3)()
