"""What a silo uses today, as what it gives for each row."""

import numpy as np
import pytest
from pandas import DataFrame, Series

from coterie.data.own.gather import Holding
from coterie.data.own.incumbent import given
from coterie.data.own.schema import Schema
from coterie.errors import BadInput

X = np.arange(6, dtype=np.float32).reshape(3, 2)
TWO = Schema.read({"shape": (2,), "classes": ["no", "yes"]}, "schema")
NUMBER = Schema.read({"shape": (2,), "centre": 10.0, "unit": 2.0}, "schema")


def held(column: list, model: object = None) -> Holding:
    aside = DataFrame({"today": column})
    return Holding("north", DataFrame({"a": X[:, 0], "b": X[:, 1]}), Series([0, 1, 0]), aside=aside, incumbent=model)


def spread(p):
    return (1 - 1e-3) * np.asarray(p) + 1e-3 / 2


def test_a_column_holds_probabilities_classes_or_numbers():
    expected = spread([[0.8, 0.2], [0.1, 0.9], [0.5, 0.5]])
    assert given("today", held([0.2, 0.9, 0.5]), X, TWO) == pytest.approx(expected, abs=1e-6)
    expected = spread([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1]])
    assert given("today", held(["no", "yes", "no"]), X, TWO) == pytest.approx(expected, abs=1e-6)
    assert given("today", held([12, 8.0, 10]), X, NUMBER) == pytest.approx([1, -1, 0])
    assert given("elsewhere", held([1, 1, 1]), X, TWO) is None


def test_an_object_is_asked_for_its_own_classes_in_their_own_order():
    class Model:
        classes_ = ("yes", "no")

        def predict_proba(self, x):
            assert list(x.columns) == ["a", "b"]  # the table as it is
            return np.array([[0.7, 0.3]] * len(x))

    assert given("", held([0, 0, 0], Model()), X, TWO) == pytest.approx(spread([[0.3, 0.7]] * 3), abs=1e-6)


@pytest.mark.parametrize(
    ("column", "schema", "why"),
    [
        (["no", "maybe", "yes"], TWO, "'maybe' is neither a class nor"),
        ([0.1, np.nan, 0.5], TWO, "is neither a class nor"),
        ([1.0, np.nan, 2.0], NUMBER, "missing"),
    ],
)
def test_a_column_that_is_no_prediction_is_refused(column, schema, why):
    with pytest.raises(BadInput, match=why):
        given("today", held(column), X, schema)


def test_an_object_that_does_not_predict_or_has_other_classes_is_refused():
    class Other:
        classes_ = ("a", "b")

        def predict_proba(self, x):
            return np.ones((len(x), 2))

    with pytest.raises(BadInput, match="its classes are"):
        given("", held([0, 0, 0], Other()), X, TWO)
    with pytest.raises(BadInput, match="neither predict_proba nor predict"):
        given("", held([0, 0, 0], object()), X, TWO)


def test_a_path_with_the_silos_name_is_the_silos_own_file(tmp_path):
    assert given(str(tmp_path / "{silo}.onnx"), held([0, 0, 0]), X, TWO) is None  # this silo has none
    pytest.importorskip("onnxruntime")
    (tmp_path / "north.onnx").write_bytes(b"no graph")
    with pytest.raises(BadInput, match="cannot be used as ONNX"):
        given(str(tmp_path / "{silo}.onnx"), held([0, 0, 0]), X, TWO)


class Gives:
    """A model that gives what it was made with."""

    def __init__(self, p: object, classes: tuple = ("no", "yes")) -> None:
        self.p, self.classes_ = p, classes

    def predict_proba(self, x: DataFrame) -> object:
        return self.p


class Chooses:
    """A model that gives classes alone."""

    def __init__(self, chosen: list) -> None:
        self.chosen = chosen

    def predict(self, x: DataFrame) -> list:
        return self.chosen


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Gives([[0.7, 0.3]] * 2), r"gives \(2, 2\) or values that are missing"),
        (Gives([[0.7, 0.3], [0.7, np.nan], [0.2, 0.8]]), "values that are missing"),
        (Gives([0.7, 0.2, 0.1]), "its classes are"),
        (Gives([[0.7, 0.2, 0.1]] * 3), "its classes are"),
        (Gives([[0.7, 0.3]] * 3, ("yes", "yes")), "its classes are"),
        (Gives([[3.0, 1.0], [0.1, 2.0], [1.0, 1.0]]), "sum to 2 up to 4; give what predict_proba gives"),
        (Gives([["a", "b"]] * 3), "cannot predict these rows"),
        (Chooses(["no", "yes"]), r"gives \(2, 2\)"),
        (Chooses(["no", "yes", "perhaps"]), "'perhaps' is neither a class nor"),
        (Chooses([0.5, 1.5, 0.0]), "is neither a class nor"),
    ],
)
def test_an_object_that_gives_what_are_no_predictions_is_refused(model: object, why: str):
    with pytest.raises(BadInput, match=why):
        given("", held([0, 0, 0], model), X, TWO)


def test_an_object_that_fails_is_named_with_its_reason():
    class Broken:
        def predict(self, x: DataFrame) -> None:
            raise RuntimeError("not fitted\nat line 3")

    for schema in (TWO, NUMBER):
        with pytest.raises(BadInput, match=r"'north' incumbent: cannot predict these rows \(not fitted\)"):
            given("", held([0, 0, 0], Broken()), X, schema)


def test_percentages_are_shares():
    found = given("", held([0, 0, 0], Gives([[70, 30], [20, 80], [50, 50]])), X, TWO)
    assert found == pytest.approx(spread([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5]]), abs=1e-6)


def test_probabilities_that_are_rounded_are_some_and_what_is_before_softmax_is_none():
    found = given("", held([0, 0, 0], Gives([[0.66, 0.32], [0.2, 0.83], [0.5, 0.5]])), X, TWO)
    assert found == pytest.approx(spread([[66 / 98, 32 / 98], [20 / 103, 83 / 103], [0.5, 0.5]]), abs=1e-6)


def test_what_a_row_gives_does_not_hang_on_the_others():
    few, more = (given("today", held(column), X, TWO) for column in ([1.0, 0.0, 1.0], [1.0, 0.4, 1.0]))
    assert few is not None and more is not None and (few[0] == more[0]).all()


def test_a_class_without_a_probability_is_not_taken_for_certain():
    chosen = ["no", "yes", "no"]
    expected = spread([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1]])
    assert given("today", held(chosen), X, TWO) == pytest.approx(expected, abs=1e-6)
    assert given("", held([0, 0, 0], Chooses(chosen)), X, TWO) == pytest.approx(expected, abs=1e-6)
