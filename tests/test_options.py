"""A dataclass as the schema of a table: what it takes, what it refuses and in which words."""

import math
import tomllib
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from coterie import toml
from coterie.data import catalog
from coterie.data.splits import SPLITS
from coterie.engine.training import Training
from coterie.errors import BadInput, nearest
from coterie.methods import METHODS, make
from coterie.models import MODELS, build
from coterie.options import check, describe, option, parse, resolved


@dataclass(frozen=True)
class Decay:
    start: float = option(1.0, "first value", above=0)
    every: int = option(10, "rounds", low=1)


@dataclass(frozen=True)
class Schema:
    path: str = field(metadata={"doc": "give the folder"})
    epochs: int = option(5, "epochs of training", low=1)
    share: float = option(0.5, "a share", low=0, below=1)
    rate: float = option(0.1, "a rate", above=0, high=10)
    quick: bool = option(False, "hurry")
    kind: Literal["sgd", "adam"] = option("sgd", "optimiser")
    rows: int | Literal["auto"] = option("auto", "rows", low=1)
    sizes: tuple[int, ...] = option((1, 2), "sizes", low=1)
    blocks: tuple[tuple[int, ...], ...] | Literal["even"] = option("even", "classes")
    beta: float | Decay | tuple[float, ...] = option(Decay(), "pull", above=0)
    keep: int | None = option(None, "at most", low=1)
    weights: dict[str, float] = option({"a": 1.0}, "weights")
    anything: Any = option(None, "anything")


def made(**values):
    return parse(Schema, {"path": "here", **values}, "[it]")


def test_defaults_are_taken():
    assert made() == Schema("here")


@pytest.mark.parametrize(
    ("key", "given", "taken"),
    [
        ("share", 0, 0.0),
        ("rate", 10, 10.0),
        ("quick", True, True),
        ("kind", "adam", "adam"),
        ("rows", 3, 3),
        ("rows", "auto", "auto"),
        ("sizes", [3], (3,)),
        ("sizes", [], ()),
        ("blocks", [[0, 1], [2]], ((0, 1), (2,))),
        ("beta", 2, 2.0),
        ("beta", math.inf, math.inf),
        ("beta", {"start": 3}, Decay(3.0)),
        ("beta", Decay(3.0), Decay(3.0)),
        ("beta", [1, 2.5], (1.0, 2.5)),
        ("keep", 7, 7),
        ("weights", {"x": 1}, {"x": 1.0}),
        ("anything", [1, "a"], [1, "a"]),
    ],
)
def test_a_value_is_taken_as_its_type(key, given, taken):
    value = getattr(made(**{key: given}), key)
    assert value == taken and type(value) is type(taken)


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("path", 3, "[it] path: expected text, found 3"),
        ("epochs", 2.0, "[it] epochs: expected whole number, found 2.0"),
        ("epochs", True, "[it] epochs: expected whole number, found True"),
        ("epochs", "5", "[it] epochs: expected whole number, found '5'"),
        ("epochs", 0, "[it] epochs: 0 is out of range; allowed: [1, inf)"),
        ("share", "half", "[it] share: expected number, found 'half'"),
        ("share", True, "[it] share: expected number, found True"),
        ("share", math.nan, "[it] share: expected number, found nan"),
        ("share", 1, "[it] share: 1.0 is out of range; allowed: [0, 1)"),
        ("share", -0.1, "[it] share: -0.1 is out of range; allowed: [0, 1)"),
        ("rate", 0, "[it] rate: 0.0 is out of range; allowed: (0, 10]"),
        ("rate", 10.5, "[it] rate: 10.5 is out of range; allowed: (0, 10]"),
        ("quick", 1, "[it] quick: expected true or false, found 1"),
        ("kind", "adm", "[it] kind: unknown value 'adm'; did you mean 'adam'?"),
        ("kind", 3, '[it] kind: unknown value 3; known: "sgd" or "adam"'),
        ("rows", "all", "[it] rows: expected whole number or \"auto\", found 'all'"),
        ("rows", 0, "[it] rows: 0 is out of range; allowed: [1, inf)"),
        ("sizes", 3, "[it] sizes: expected a list, found 3"),
        ("sizes", [1, "a"], "[it] sizes[1]: expected whole number, found 'a'"),
        ("sizes", [1, 0], "[it] sizes[1]: 0 is out of range; allowed: [1, inf)"),
        ("blocks", [[0], 1], '[it] blocks: expected list of lists of whole numbers or "even", found [[0], 1]'),
        ("beta", "x", "[it] beta: expected number or table or list of numbers, found 'x'"),
        ("beta", 0, "[it] beta: 0.0 is out of range; allowed: (0, inf)"),
        ("beta", [1, 0], "[it] beta[1]: 0.0 is out of range; allowed: (0, inf)"),
        ("beta", {"strat": 1}, "[it] beta: unknown key 'strat'; did you mean 'start'?"),
        ("beta", {"every": 0}, "[it] beta every: 0 is out of range; allowed: [1, inf)"),
        ("keep", 0, "[it] keep: 0 is out of range; allowed: [1, inf)"),
        ("weights", 1, "[it] weights: expected a table, found 1"),
        ("weights", {"a": "b"}, "[it] weights.a: expected number, found 'b'"),
        ("epoch", 5, "[it]: unknown key 'epoch'; did you mean 'epochs'?"),
    ],
)
def test_a_wrong_value_is_refused_in_words(key, given, said):
    with pytest.raises(BadInput) as error:
        made(**{key: given})
    assert str(error.value) == said


def test_a_key_like_no_other_lists_them_all():
    with pytest.raises(BadInput, match=r"\[it\]: unknown key 'zzz'; known: every, start$"):
        parse(Decay, {"zzz": 1}, "[it]")


def test_a_key_that_is_missing_says_what_it_is_for():
    with pytest.raises(BadInput, match=r"^\[it\]: 'path' is missing; give the folder$"):
        parse(Schema, {}, "[it]")


def test_a_value_in_place_of_a_table_is_refused():
    with pytest.raises(BadInput, match=r"\[it\]: expected a table, found 3"):
        parse(Schema, 3, "[it]")  # type: ignore[arg-type]


def test_what_a_schema_itself_refuses_is_bad_input():
    with pytest.raises(BadInput, match=r"\[data\]: smallest = 9 is above largest = 5"):
        catalog.resolved("synthetic", {"smallest": 9, "largest": 5})


def test_options_made_in_python_can_be_checked_too():
    assert check(Decay(2.0)) == Decay(2.0)
    with pytest.raises(BadInput, match="every: 0 is out of range"):
        check(Decay(every=0))


def test_a_default_table_is_not_shared():
    made().weights["b"] = 1.0
    assert made().weights == {"a": 1.0}


def test_options_describe_themselves():
    told = {each.name: each for each in describe(Schema)}
    assert list(told) == [*Schema.__dataclass_fields__]
    assert (told["share"].type, told["share"].range, told["share"].default) == ("number", "[0, 1)", 0.5)
    assert (told["kind"].range, told["path"].default, told["keep"].type) == ("", None, "whole number")
    assert told["weights"].default == {"a": 1.0}


def test_nearest_names_the_closest_or_all():
    assert nearest("fedamq", ["fedavg", "fedamp"]) == "did you mean 'fedamp'?"
    assert nearest("x", ["b", "a"]) == "known: a, b"
    assert nearest("x", []) == "known: none"


def test_resolved_leaves_nothing_out_but_none():
    table = resolved(made(beta={"start": 3}))
    assert set(Schema.__dataclass_fields__) - set(table) == {"keep", "anything"}
    assert table["beta"] == {"start": 3.0, "every": 10}


def written(table):
    return tomllib.loads(toml.dumps(table))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_written_back_is_the_same_method(name):
    method = make(name, {})
    table = written(resolved(method))
    assert table.keys() == {each.name for each in describe(METHODS[name]) if each.default is not None}
    assert make(name, table) == method


@pytest.mark.parametrize("name", catalog.CATALOG)
def test_data_written_back_are_the_same_data(name):
    table = written(catalog.resolved(name, {}))
    assert catalog.resolved(name, table) == table


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_written_back_is_the_same_split(split):
    table = written(catalog.resolved("digits", {"split": split}))
    assert table["split"] == split and ("silos" in table or split == "natural")
    assert catalog.resolved("digits", table) == table


@pytest.mark.parametrize("name", MODELS)
def test_a_model_written_back_is_the_same_model(name):
    table = written(build({"name": name}, (), 0)[1])
    assert build(table, (), 0)[1] == table


@pytest.mark.parametrize("values", [{}, {"schedule_at": [0.25], "measure": ["test"], "lr": 1e-9}])
def test_training_written_back_is_the_same_training(values):
    training = parse(Training, values, "[train]")
    assert parse(Training, written(resolved(training)), "[train]") == training
