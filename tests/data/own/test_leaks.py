"""What may make a test score flatter: copies of training rows, and an identifier that repeats."""

import numpy as np
import pandas as pd
import pytest
from own_silos import hospital

from coterie.data.own.gather import from_dataset, from_frame
from coterie.data.own.leaks import copies, repeating_identifiers
from coterie.data.own.ready import OwnData, ready


def remarks(frames, label="y", drop=(), **by):
    frames = frames if isinstance(frames, dict) else {"north": frames}
    holdings = [from_frame(name, frame, label, drop, name, tuple(by.values())) for name, frame in frames.items()]
    found = ready(holdings, OwnData(label=label, drop=drop, **by), 0).differences
    return [(d.column, d.silo, d.what) for d in found if "copies" in d.what or "identifier" in d.what]


def table(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 3)), columns=list("abc"))
    return frame.assign(sex=rng.choice(["f", "m"], rows), y=rng.choice(["no", "yes"], rows))


def patients(seed=0, count=60, most=8, number=False, noise=0.1):
    """Patients with one to `most` visits: sex, height and label are theirs, two values change a little."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(count), rng.integers(1, most + 1, count))
    own = pd.DataFrame(rng.normal(size=(count, 3)), columns=["height", "pulse", "iron"])
    own = own.assign(sex=rng.choice(["f", "m"], count), y=rng.choice(["no", "yes"], count))
    frame = own.iloc[who].reset_index(drop=True)
    frame[["pulse", "iron"]] += noise * rng.normal(size=(len(who), 2))
    names = rng.permutation(10 * count)[:count]
    frame["patient"] = names[who] if number else [f"p{i}" for i in names[who]]
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def test_copies_of_training_rows_are_counted():
    frame = pd.concat([table(), table().head(40)], ignore_index=True)
    ((column, silo, what),) = remarks(frame)
    assert (column, silo) == ("rows", "north")
    assert what.endswith("are exact copies of training rows; a score on them flatters: remove them or give --group")
    parts = ready([from_frame("north", frame, "y", (), "")], OwnData(label="y"), 0).silos[0]
    tested = [int((part.x[:, None] == parts.train.x).all(2).any(1).sum()) for part in (parts.test, parts.validation)]
    assert what.startswith(f"{tested[0]} test and {tested[1]} validation rows are") and min(tested) > 0


def test_a_single_copy_is_one_row():
    x = table()
    train, test = np.arange(100), np.arange(100, 200)
    x.iloc[150] = x.iloc[3]
    what = copies(x.drop(columns="y"), x["y"].to_numpy(), train, {"test": test, "validation": test[:0]})
    assert what.startswith("1 test row is an exact copy of a training row;")


def test_a_copy_differs_in_no_column_and_has_the_same_label():
    assert remarks(table()) == []
    other = table().head(40).assign(c=lambda f: f["c"] + 1e-9)
    turned = table().head(40).assign(y=lambda f: np.where(f["y"] == "no", "yes", "no"))
    for more in (other, turned):
        assert remarks(pd.concat([table(), more], ignore_index=True)) == []
    named = pd.concat([table(), table().head(40)], ignore_index=True).assign(id=lambda f: [f"i{n}" for n in f.index])
    assert len(remarks(named, drop=("id",))) == 1  # what is left out does not tell two rows apart


def test_rows_of_few_categories_repeat_by_chance():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({c: rng.choice(list("uvw"), 300) for c in "abc"}).assign(y=rng.choice(["no", "yes"], 300))
    assert remarks(frame) == []


def test_copies_in_arrays_are_counted():
    x, y = np.random.default_rng(0).normal(size=(60, 1, 4, 4)), np.arange(60) % 2
    plain, twice = (x, y), (np.concatenate([x, x[:30]]), np.concatenate([y, y[:30]]))
    for held, expected in ((plain, 0), (twice, 1)):
        found = ready([from_dataset("a", held)], OwnData(), 0).differences
        assert sum("exact copies" in d.what for d in found) == expected
        assert all(d.flatters for d in found)
    pair = [from_dataset(name, plain) for name in "ab"]
    for validation in (0.2, 0.0):  # also where nothing validates
        found = ready(pair, OwnData(validation=validation), 0).differences
        assert [d.silo for d in found if "exact copies" in d.what] == ["a", "b"]


def test_rows_that_another_silo_trains_on_are_counted():
    frames = {"north": table(), "south": table(), "east": table(seed=1)}
    found = remarks(frames)
    assert [each[:2] for each in found] == [("rows", "north"), ("rows", "south")]
    parts = {
        silo.name: silo
        for silo in ready([from_frame(n, f, "y", (), n) for n, f in frames.items()], OwnData(label="y"), 0).silos
    }
    tests = int((parts["north"].test.x[:, None] == parts["south"].train.x).all(2).any(1).sum())
    assert 0 < tests < 40 and found[0][2].startswith(f"{tests} test and ")
    assert "exact copies of training rows of 1 silo: south; what is trained together has seen them" in found[0][2]


def test_one_row_that_another_silo_trains_on_is_said_of_one():
    part = ["train"] * 120 + ["validation"] * 40 + ["test"] * 40
    north, south = (table(seed=seed).assign(part=part) for seed in (0, 1))
    south.iloc[0, :-1] = north.iloc[-1, :-1]
    options = OwnData(label="y", split_column="part")
    held = [from_frame(n, f, "y", (), n, options.columns) for n, f in (("north", north), ("south", south))]
    ((silo, what),) = [(d.silo, d.what) for d in ready(held, options, 0).differences if d.flatters]
    assert silo == "north" and what.startswith("1 test row is an exact copy of a training row of 1 silo: south;")


def test_a_row_of_another_silo_with_another_label_or_of_few_categories_is_no_copy():
    turned = table().assign(y=lambda f: np.where(f["y"] == "no", "yes", "no"))
    assert remarks({"north": table(), "south": turned}) == []
    rng = np.random.default_rng(0)
    few = [
        pd.DataFrame({c: rng.choice(list("uvw"), 90) for c in "abc"}).assign(y=rng.choice(["no", "yes"], 90))
        for _ in "ns"
    ]
    assert remarks(dict(zip("ns", few, strict=True))) == []


@pytest.mark.parametrize("number", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_an_identifier_that_repeats_is_remarked_on(number, seed):
    frames = {name: patients(10 * seed + i, number=number) for i, name in enumerate(("north", "south"))}
    drop = () if number else ("patient",)  # as a text it has to be left out, and is looked at all the same
    assert remarks(frames, drop=drop) == [
        ("patient", "2 silos: north, south", "looks like an identifier that repeats: give --group patient")
    ]
    assert remarks(frames, group="patient") == []
    held = [from_frame(name, frame, "y", drop, name) for name, frame in frames.items()]
    assert [d.flatters for d in ready(held, OwnData(label="y", drop=drop), 0).differences] == [True]


def test_an_identifier_whose_rows_a_split_column_keeps_on_one_side_is_not_remarked_on():
    frame = patients(number=True)
    sides = dict(zip(frame["patient"].unique(), ["train", "train", "train", "validation", "test"] * 12, strict=True))
    kept = frame.assign(part=frame["patient"].map(sides))
    assert remarks({"north": kept}, split_column="part") == []
    kept.loc[kept["patient"].duplicated(), "part"] = "train"
    assert [column for column, *_ in remarks({"north": kept}, split_column="part")] == ["patient"]


def test_a_group_of_most_rows_is_remarked_on():
    frame = table().assign(patient=[f"p{i}" if i % 3 == 0 else "none" for i in range(200)])
    found = ready([from_frame("north", frame, "y", (), "", ("patient",))], OwnData(label="y", group="patient"), 0)
    (remark,) = [(d.column, d.silo, d.what) for d in found.differences]
    assert remark[:2] == ("patient", "north") and remark[2].startswith(
        "'none' has 133 of 200 rows, which stay on one side"
    )
    frame.loc[frame["patient"] == "none", "patient"] = None  # each a group of its own
    empty = ready([from_frame("north", frame, "y", (), "", ("patient",))], OwnData(label="y", group="patient"), 0)
    assert empty.differences == []


def test_visits_that_change_and_a_label_that_changes_are_found_too():
    frame = patients(3, count=100, noise=0.5)
    frame["y"] = np.random.default_rng(0).choice(["no", "yes"], len(frame))
    assert repeating_identifiers(frame.drop(columns="y"), frame["y"]) == ["patient"]


def ordinary(seed, rows=400):
    """Columns that repeat as an identifier does and are none: ages, a birth year, a town, a postcode, amounts, days."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 91, rows)
    town = rng.choice([f"town {i}" for i in range(60)], rows, p=(w := 1 / np.arange(1, 61)) / w.sum())
    code = pd.factorize(town)[0] + 70000
    frame = pd.DataFrame({"age": age, "born": 2024 - age - rng.integers(0, 2, rows), "town": town, "code": code})
    frame = frame.assign(
        salary=(rng.lognormal(3.5, 0.4, rows)).round() * 1000,
        day=np.sort(rng.integers(0, 90, rows)),
        visits=rng.poisson(15, rows),
        pressure=(100 + 0.5 * age + rng.normal(0, 10, rows)).round(),
        weight=rng.normal(70, 12, rows),
        ward=rng.choice(["a", "b", "c"], rows),
    )
    return frame, pd.Series(np.where(age + rng.normal(0, 15, rows) > 55, "yes", "no"))


@pytest.mark.parametrize("seed", range(10))
def test_ages_towns_and_amounts_are_no_identifiers(seed):
    for rows in (30, 60, 400, 1500):
        x, y = ordinary(seed, rows)
        assert repeating_identifiers(x, y) == []
        assert repeating_identifiers(x[["age", "pressure"]], y) == []
        assert repeating_identifiers(x[["age", "born"]], y) == []


def test_hospitals_have_no_leak():
    frames = {name: hospital(i) for i, name in enumerate(("st-mary", "north"))}
    assert remarks(frames, "outcome", ("patient", "cost")) == []
