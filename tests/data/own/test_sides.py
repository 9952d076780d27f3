"""Which of a silo's rows train, validate and test: by group, by time, as a column or files give it."""

import numpy as np
import pandas as pd
import pytest

from coterie.data.own.gather import from_dataset, from_frame, gather, read_silo
from coterie.data.own.ready import OwnData, ready, split
from coterie.data.silo import Part
from coterie.errors import BadInput

SIDES = ("train", "validation", "test")


def visits(seed=0, patients=100, each=6, jitter=0.05):
    """Patients, each seen several times: near-identical rows, and a label that they explain in part."""
    rng = np.random.default_rng(seed)
    who = rng.permutation(np.repeat(np.arange(patients), each))
    body = rng.normal(size=(patients, 4))
    ill = body[:, 0] + 1.5 * rng.normal(size=patients) > 0.5
    frame = pd.DataFrame(body[who] + jitter * rng.normal(size=(len(who), 4)), columns=list("abcd"))
    return frame.assign(patient=[f"p{seed}-{i}" for i in who], ill=np.where(ill[who], "yes", "no"))


def quarters(count=5, each=500):
    """A rule that turns by a quarter of a half-turn every quarter of a year, and a price that rises."""
    rng = np.random.default_rng(3)
    when = np.repeat(np.arange(count), each)
    x, turn = rng.normal(size=(len(when), 2)), when * np.pi / 4
    dates = pd.Timestamp("2023-01-01") + pd.to_timedelta(91 * when + rng.integers(0, 90, len(when)), unit="D")
    y = np.where(x[:, 0] * np.cos(turn) + x[:, 1] * np.sin(turn) > 0, "up", "down")
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "price": 5.0 * when, "date": dates.strftime("%Y-%m-%d"), "y": y})
    return frame.assign(quarter=when).sample(frac=1, random_state=0).reset_index(drop=True)


def held(frame, label="ill", name="north", drop=(), seed=0, **options):
    by = [value for key, value in options.items() if key in ("group", "time", "split_column")]
    holding = from_frame(name, frame, label, drop, name, by)
    return split(holding, OwnData(label=label, drop=drop, **options), seed)


def nearest(known, new):
    """The accuracy of the nearest known row, a simple model that remembers everything."""
    distances = ((new.x[:, None] - known.x[None]) ** 2).sum(2)
    return (known.y[distances.argmin(1)] == new.y).mean()


def test_patients_on_both_sides_flatter_and_groups_do_not():
    frames = {"north": visits(1, patients=800, each=3), "new": visits(2, patients=1600, each=1)}

    def scores(drop=(), **by):
        """The reported accuracy and that on new patients, over some seeds."""
        holdings = [from_frame(name, frame, "ill", drop, name, tuple(by.values())) for name, frame in frames.items()]
        options = OwnData(label="ill", drop=drop, validation=0, test_share=0.4, **by)
        for seed in range(3):
            known, new = ready(holdings, options, seed).silos
            yield nearest(known.train, known.test), nearest(known.train, new.train)

    reported, true = np.mean([*scores(("patient",))], 0)
    assert reported > 0.9 and true < 0.65
    reported, true = np.mean([*scores(group="patient")], 0)
    assert abs(reported - true) < 0.03


def test_no_patient_is_on_two_sides_and_shares_and_classes_are_kept():
    frame = visits(patients=200, each=5)
    for seed in range(3):
        own = held(frame, group="patient", seed=seed)
        sides = [set(frame["patient"].iloc[own.rows[getattr(own, side)]]) for side in SIDES]
        assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
        counts = [len(getattr(own, side)) for side in SIDES]
        assert counts == pytest.approx([640, 160, 200], abs=10) and sum(counts) == 1000
        shares = [(frame["ill"].iloc[getattr(own, side)] == "yes").mean() for side in SIDES]
        assert shares == pytest.approx([(frame["ill"] == "yes").mean()] * 3, abs=0.02)
    assert not np.array_equal(held(frame, group="patient", seed=1).test, own.test)


def test_the_columns_of_a_split_are_no_features():
    frame = visits().assign(date="2024-05-06", fold="train")
    frame.loc[:50, "date"], frame.loc[50:99, "date"] = "2024-05-07", "2024-05-08"
    frame.loc[:50, "fold"] = "test"
    for options in ({"group": "patient"}, {"time": "date"}, {"split_column": "fold"}):
        rest = tuple({"patient", "date", "fold"} - {*options.values()})
        holdings = [from_frame("north", frame, "ill", rest, "north", tuple(options.values()))]
        schema = ready(holdings, OwnData(label="ill", drop=rest, **options), 0).schemas["north"]
        assert [column.name for column in schema.columns] == list("abcd")


def test_rows_without_a_group_are_a_group_each():
    frame = visits(patients=30, each=4)
    frame.loc[frame.index % 2 == 0, "patient"] = None
    own = held(frame, group="patient")
    empty = own.units[frame["patient"].isna().to_numpy()]
    assert len(set(empty)) == len(empty) == 60 and len(set(own.units)) == 60 + frame["patient"].nunique()


def test_a_column_without_any_group_splits_as_rows_do():
    own = held(visits(patients=20, each=5).assign(patient=None), group="patient")
    assert [len(getattr(own, side)) for side in SIDES] == [64, 16, 20]


def test_a_large_group_is_whole_wherever_it_goes():
    frame = visits(patients=20, each=5)
    frame.loc[:60, "patient"] = "large"
    own = held(frame, group="patient")
    large = set(np.flatnonzero(frame["patient"] == "large"))
    assert sum(large <= set(getattr(own, side)) for side in SIDES) == 1
    assert all(len(getattr(own, side)) for side in SIDES)


def test_a_part_names_its_rows_and_units():
    frame = visits(patients=20, each=5)
    frame.loc[:3, "ill"] = None  # left out, but rows are counted as they are in the table
    data = ready(
        [from_frame("north", frame, "ill", (), "north", ("patient",))], OwnData(label="ill", group="patient"), 0
    )
    (silo,) = data.silos
    parts = [silo.train, silo.validation, silo.test]
    assert sorted(np.concatenate([part.rows for part in parts])) == list(range(4, 100))
    for part in parts:
        assert ((part.y == 1) == (frame["ill"].iloc[part.rows] == "yes")).all()
        by = pd.DataFrame({"unit": part.units, "patient": frame["patient"].iloc[part.rows].to_numpy()})
        assert (by.groupby("unit")["patient"].nunique() == 1).all() and by["unit"].nunique() == by["patient"].nunique()
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    (plain,) = ready([from_dataset("a", (x, y))], OwnData(), 0).silos
    assert np.array_equal(plain.test.x, x[plain.test.rows].astype(np.float32)) and plain.test.units is None


def test_with_time_the_score_is_that_of_the_next_quarter():
    frame = quarters()
    past, following = frame[frame["quarter"] < 4].reset_index(drop=True), frame[frame["quarter"] == 4]
    options = {"label": "y", "drop": ("date", "quarter"), "test_share": 0.25}

    def known(**more):
        holding = from_frame("north", past, "y", options["drop"], "north", tuple(more.values()))
        return split(holding, OwnData(**options, **more), 0)

    def part(rows):
        return Part(rows[["a", "b", "price"]].to_numpy(), (rows["y"] == "up").to_numpy())

    timed = known(time="date", validation=1 / 3)
    assert [set(past["quarter"].iloc[getattr(timed, side)]) for side in SIDES] == [{0, 1}, {2}, {3}]
    timed, drawn = known(time="date", validation=0), known(validation=0)
    reported, flattering = (nearest(part(past.iloc[own.train]), part(past.iloc[own.test])) for own in (timed, drawn))
    next_quarter = nearest(part(past), part(following))  # of a model of all that is known
    assert abs(reported - next_quarter) < 0.06 and flattering - next_quarter > 0.15


def test_rows_of_one_time_stay_on_one_side():
    frame = visits(patients=50, each=4).assign(day=lambda f: np.arange(len(f)) // 23)
    own = held(frame, time="day", drop=("patient",))
    days = [set(frame["day"].iloc[getattr(own, side)]) for side in SIDES]
    assert max(days[0]) < min(days[1]) and max(days[1]) < min(days[2])
    assert [len(getattr(own, side)) for side in SIDES] == pytest.approx([128, 32, 40], abs=15)


@pytest.mark.parametrize(
    "dates",
    [
        [f"2024-{m}-{d}" for m in (1, 11) for d in range(1, 7)],
        [f"{d}.{m:02d}.2024" for m in (1, 11) for d in range(1, 7)],
        [f"{m}/{d}/2024" for m in (1, 11) for d in range(20, 26)],
        [f"{d}/{m}/2024 10:30" for m in (1, 11) for d in range(20, 26)],
        list(pd.date_range("2024-01-01", periods=12)),
        [each.date() for each in pd.date_range("2024-01-01", periods=12)],
        list(range(12)),
        [str(i / 2) for i in range(12)],
    ],
)
def test_times_are_dates_or_numbers(dates):
    order = np.random.default_rng(0).permutation(12)
    frame = pd.DataFrame({"a": np.arange(12), "when": [dates[i] for i in order], "ill": np.arange(12) % 2})
    own = held(frame, time="when")
    assert sorted(order[own.test]) == [10, 11] and max(order[own.train]) < min(order[own.validation])


def test_groups_go_by_their_last_time():
    frame = visits(patients=50, each=4).assign(day=lambda f: np.arange(len(f)))
    own = held(frame, time="day", group="patient")
    last = frame.groupby("patient")["day"].max()
    sides = [set(frame["patient"].iloc[getattr(own, side)]) for side in SIDES]
    assert sum(map(len, sides)) == 50
    assert last[list(sides[0])].max() < last[list(sides[1])].min() < last[list(sides[1])].max()
    assert last[list(sides[1])].max() < last[list(sides[2])].min()


def test_a_column_gives_the_split():
    frame = visits(patients=20, each=5).assign(fold=["train", "Validation", "test", "train ", "train"] * 20)
    own = held(frame, split_column="fold", drop=("patient",))
    assert [list(getattr(own, side)[:2]) for side in SIDES] == [[0, 3], [1, 6], [2, 7]]
    short = frame.replace({"fold": {"Validation": "val"}}), frame.replace({"fold": {"Validation": "valid"}})
    assert all(np.array_equal(held(f, split_column="fold").validation, own.validation) for f in short)
    without = frame.replace({"fold": {"Validation": "train"}})
    drawn = held(without, split_column="fold", drop=("patient",))
    assert np.array_equal(drawn.test, own.test) and len(drawn.validation) == 16 and len(drawn.train) == 64
    assert not np.array_equal(drawn.validation, held(without, split_column="fold", seed=1).validation)
    grouped = frame.assign(fold=np.where(frame["patient"].str.endswith(("1", "3")), "test", "train"))
    kept = held(grouped, split_column="fold", group="patient")
    assert not set(kept.units[kept.train]) & set(kept.units[kept.validation])


def test_files_give_the_split(tmp_path):
    frame = visits(patients=20, each=5)
    (tmp_path / "north").mkdir()
    frame[:60].to_csv(tmp_path / "north" / "train.csv", index=False)
    frame[60:70].to_parquet(tmp_path / "north" / "val.parquet")
    frame[70:].to_csv(tmp_path / "north" / "Test.csv", index=False)
    options = OwnData(label="ill", drop=("patient",))
    own = split(gather(tmp_path, "ill", ("patient",))[0], options, 0)
    assert [(min(r), max(r)) for r in (own.train, own.validation, own.test)] == [(0, 59), (60, 69), (70, 99)]
    (tmp_path / "north" / "val.parquet").unlink()
    own = split(gather(tmp_path, "ill", ("patient",))[0], options, 0)
    assert (len(own.train), len(own.validation)) == (48, 12) and min(own.test) == 60
    with pytest.raises(BadInput, match=r"values of 'patient' are on two sides of its split"):
        split(read_silo(tmp_path / "north", "ill", (), ("patient",)), OwnData(label="ill", group="patient"), 0)
    with pytest.raises(BadInput, match="comes split; leave out --time a"):
        split(read_silo(tmp_path / "north", "ill", (), ("a",)), OwnData(label="ill", time="a"), 0)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["train", "validation"], "has train.csv but no test; add one or rename it"),
        (["test", "more"], "has test.csv but no train; add one or rename it"),
        (["train", "test", "more"], "more.csv beside train.csv; move it away or rename"),
        (["train", "val", "validation", "test"], "val.csv and validation.csv are both for validation; keep one"),
    ],
)
def test_files_that_give_half_a_split_are_refused(files, said, tmp_path):
    (tmp_path / "north").mkdir()
    for file in files:
        visits(patients=3).to_csv(tmp_path / "north" / f"{file}.csv", index=False)
    with pytest.raises(BadInput, match=said):
        gather(tmp_path, "ill", ("patient",))


def test_a_single_table_is_no_split_whatever_its_name(tmp_path):
    (tmp_path / "north").mkdir()
    visits().to_csv(tmp_path / "north" / "train.csv", index=False)
    assert gather(tmp_path, "ill", ("patient",))[0].sides is None


def test_a_silos_split_that_lies_where_silos_are_expected_is_refused(tmp_path):
    for name in ("train", "test"):
        visits().to_csv(tmp_path / f"{name}.csv", index=False)
    with pytest.raises(BadInput, match=r"test.csv, train.csv are the split of one silo, not silos; put them into"):
        gather(tmp_path, "ill", ("patient",))


def row(frame, place, **values):
    changed = frame.astype(object)
    for name, value in values.items():
        changed.loc[place, name] = value
    return changed


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (
            lambda f: f,
            {"group": "pateint"},
            "'north': has no column 'pateint' for --group; did you mean 'patient'",
        ),
        (lambda f: f, {"group": "ill"}, "--group ill: is the label; give another column"),
        (lambda f: f.assign(g=f.index % 2), {"group": "g"}, "column 'g' has 2 different values; 3 or more are needed"),
        (lambda f: f.assign(g=np.array([1, 2] + [3] * 18)[f.index // 5]), {"group": "g"}, "too few or too unequal"),
        (lambda f: row(f, 6, day=None), {"time": "day"}, "silo 'north' column 'day': no time in row 7; add it or"),
        (lambda f: f.assign(day=None), {"time": "day"}, "column 'day': no time in row 1; add it or"),
        (lambda f: f.assign(fold=np.nan), {"split_column": "fold"}, "column 'fold': no value in row 1; write train"),
        (lambda f: row(f, 6, day="soon"), {"time": "day"}, "column 'day': 'soon' in row 7 is neither a date nor a n"),
        (lambda f: row(f, 6, day="2024-02-31"), {"time": "day"}, "'2024-02-31' in row 7 is neither"),
        (lambda f: f.assign(day="1/2/2024"), {"time": "day"}, "day or month first\\? write dates as 2024-02-01"),
        (lambda f: f.assign(day=f.index % 2), {"time": "day"}, "column 'day' has 2 different times; 3 or more"),
        (lambda f: row(f, 6, fold="tset"), {"split_column": "fold"}, "'tset' in row 7 is none of train, val"),
        (lambda f: row(f, 6, fold=None), {"split_column": "fold"}, "column 'fold': no value in row 7; write train"),
        (lambda f: f.assign(fold="train"), {"split_column": "fold"}, "silo 'north': no row is for test"),
        (lambda f: f.assign(fold="test"), {"split_column": "fold"}, "silo 'north': no row is for train"),
        (lambda f: f, {"split_column": "fold", "time": "day"}, "time and split_column both set which rows test"),
        (lambda f: f, {"split_column": "fold", "group": "patient"}, "values of 'patient' are on two sides"),
    ],
)
def test_splits_that_cannot_be_made_are_refused_by_name(change, options, said):
    frame = visits(patients=20, each=5)
    frame = frame.assign(day=pd.Series(np.arange(100)), fold=np.where(frame.index < 80, "train", "test"))
    with pytest.raises(BadInput, match=said):
        held(change(frame), **options)


def test_arrays_have_no_columns_to_split_by():
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    with pytest.raises(BadInput, match="silo 'a': has no column 'patient' for --group; known: none"):
        ready([from_dataset("a", (x, y))], OwnData(group="patient"), 0)
