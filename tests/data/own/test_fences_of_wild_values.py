"""One wild value in one silo, or one silo that declares nonsense, leaves the other silos as they were."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

import coterie as co
from coterie.data.own import ready as made_ready
from coterie.data.own.gather import from_frame
from coterie.data.own.ready import OwnData, ready, split

NAMES = ("a", "b", "c", "d", "e")
WILD = 9.9e8
WEIGHTS = np.array([1.0, -2.0, 0.5])


def frames(task):
    made = {}
    for place, name in enumerate(NAMES):
        rng = np.random.default_rng(place)
        x = rng.normal(0, 1, (120, 3))
        y = x @ WEIGHTS + rng.normal(0, 0.5, 120)
        made[name] = pd.DataFrame({"u": 20 + 5 * x[:, 0], "v": 0.1 * x[:, 1], "w": x[:, 2], "y": 1000 + 100 * y})
        if task == "classification":
            made[name]["y"] = np.where(y > 0, 1, 0)
    return made


def spoilt(task, columns):
    """A wild value in a training row of silo c."""
    found = frames(task)
    row = int(split(from_frame("c", found["c"], "y", (), "c"), OwnData(label="y"), 0).train[4])
    for column in columns:
        found["c"][column] = found["c"][column].astype(float)
        found["c"].loc[row, column] = WILD
    return found, row


def scores(found):
    """Silos by methods: test rmse, or log-loss, after the last round."""
    made = co.Federation(co.silos(found, label="y"), model="linear", rows="all").compare(
        ["separate", "fedavg"], rounds=15, lr=0.05, batch_size=16, quiet=True
    )
    last = made.results.query("split == 'test' and round == 15 and measure in ('rmse', 'loss')")
    measure = "rmse" if (last["measure"] == "rmse").any() else "loss"
    return last[last["measure"] == measure].pivot(index="silo", columns="method", values="value")


@cache
def clean(task):
    return scores(frames(task))


@pytest.mark.parametrize(
    ("task", "columns"), [("regression", "u"), ("regression", "y"), ("regression", "uy"), ("classification", "u")]
)
def test_the_other_silos_are_as_good_as_without_it(task, columns):
    found = scores(spoilt(task, columns)[0])
    others = [name for name in NAMES if name != "c"]
    assert found.loc[others].to_numpy() == pytest.approx(clean(task).loc[others].to_numpy(), rel=0.05)
    assert np.isfinite(found.to_numpy()).all()


def test_what_was_pulled_in_is_told_with_silo_column_value_and_row():
    found, row = spoilt("regression", "uy")
    told = [(d.silo, d.column, d.what, d.stops) for d in data(found).differences]
    assert [each[:2] for each in told] == [("c", "u"), ("c", "y")]
    assert all(f"9.9e+08 in row {row + 1}" in what and not stops for _, _, what, stops in told)
    scored = [(d.column, d.flatters) for d in data(found).differences if "in scores too" in d.what]
    assert scored == [("y", True)] and not data(found).differences[0].flatters
    found["c"].loc[:2, "y"] = np.nan  # rows are counted as in the file, whatever rows are left out
    assert any(f"9.9e+08 in row {row + 1}" in each.what for each in data(found).differences if each.column == "u")
    assert not data(frames("regression")).differences


def data(found):
    return ready([from_frame(name, frame, "y", (), name) for name, frame in found.items()], OwnData(label="y"), 0)


@pytest.mark.parametrize("standardize", ["federation", "silo"])
def test_a_model_encodes_rows_to_predict_as_in_training(standardize):
    found, row = spoilt("regression", "u")
    options = {"label": "y", "standardize": standardize}
    fed = co.Federation(co.silos(found, **options), model="linear", rows="all")
    model = fed.train("separate", rounds=1, quiet=True)["c"]
    silo = next(s for s in fed._assembly.silos if s.name == "c")
    rows = split(from_frame("c", found["c"], "y", (), "c"), OwnData(label="y"), 0)
    encoded = model.encode(found["c"])
    assert np.array_equal(encoded[rows.train], silo.train.x) and np.array_equal(encoded[rows.test], silo.test.x)
    assert 2 < encoded[row, 0] < 5


def poisoned(monkeypatch, **lies):
    """Silo c declares other statistics than its rows have."""
    honest = made_ready.declare

    def declare(*arguments, **options):
        told = honest(*arguments, **options)
        return (
            told.replace(**{key: change(getattr(told, key)) for key, change in lies.items()})
            if (arguments[-1] == "silo 'c'")
            else told
        )

    monkeypatch.setattr(made_ready, "declare", declare)


@pytest.mark.parametrize("lies", [{"count": 1e9}, {"mean": 3}, {"scatter": 1e4}], ids=str)
def test_a_silo_that_declares_nonsense_moves_nobody(lies, monkeypatch):
    poisoned(monkeypatch, **{key: lambda t, by=by: t * by for key, by in lies.items()})
    found = scores(frames("regression"))
    others = [name for name in NAMES if name != "c"]
    assert found.loc[others, "fedavg"].to_numpy() == pytest.approx(
        clean("regression").loc[others, "fedavg"].to_numpy(), rel=0.05
    )


@pytest.mark.parametrize(
    ("lies", "said"),
    [
        ({"mean": np.nan}, "'u' of c: its count"),
        ({"count": -1}, "'u' of c: its count"),
        ({"scatter": -1}, "'u' of c: its count"),
        ({"scatter": 1e30}, "'u' of c: mean"),
        ({"mean": 1e12}, "'u' of c: mean"),
        ({"target": np.inf}, "'y' of c: its count"),
    ],
    ids=str,
)
def test_what_no_rows_can_have_is_refused_by_silo_and_column(lies, said, monkeypatch):
    poisoned(monkeypatch, **{key: lambda t, by=by: t * by for key, by in lies.items()})
    with pytest.raises(co.BadInput, match=said):
        data(frames("regression"))


def test_statistics_of_another_number_of_columns_are_refused(monkeypatch):
    poisoned(monkeypatch, **{key: lambda t: t[:, :2] for key in ("count", "mean", "scatter")})
    with pytest.raises(co.BadInput, match="'columns' of c: 2 statistics of 3 columns"):
        data(frames("regression"))
