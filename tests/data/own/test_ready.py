"""OwnData silos from a folder to what a model takes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from own_silos import CLASSES, NAMES, hospital, hospitals

from coterie.codec import decode, encode_up
from coterie.data import catalog
from coterie.data.own.agree import SchemaDiffers
from coterie.data.own.gather import from_dataset, from_frame, gather, read_silo
from coterie.data.own.ready import OwnData, capped, load, ready, split
from coterie.data.own.schema import Schema
from coterie.data.own.statistics import Statistics, declare, description_of
from coterie.errors import BadInput

DROP = ("patient", "cost")


def silos(changes=lambda name, frame: frame, label="outcome", drop=DROP):
    frames = {name: changes(name, hospital(i)) for i, name in enumerate(NAMES)}
    return [from_frame(name, frame, label, drop, name) for name, frame in frames.items()]


def made(changes=lambda name, frame: frame, seed=0, label="outcome", drop=DROP, **options):
    return ready(silos(changes, label, drop), OwnData(label=label, drop=drop, **options), seed)


def test_a_folder_of_tables_becomes_silos_encoded_alike(tmp_path):
    options = {"path": str(hospitals(tmp_path / "h")), "label": "outcome", "drop": list(DROP)}
    data = catalog.load("own", options, 0)
    assert [silo.name for silo in data.silos] == sorted(NAMES) and data.classes == 3
    schema = data.schemas["north"]
    assert schema.classes == CLASSES
    assert [(c.name, c.kind, c.indicator, c.levels) for c in schema.columns] == [
        ("age", "number", True, ()),
        ("pressure", "number", False, ()),
        ("ward", "category", False, ("er", "general", "icu")),
        ("smoker", "category", False, ("false", "true")),
    ]
    for silo in data.silos:
        assert silo.train.x.shape[1:] == schema.shape == (8,) and silo.train.x.dtype == np.float32
        assert len(silo.train) > len(silo.test) > 0 and len(silo.validation) > 0


def test_rows_keep_their_meaning():
    data = made()
    silo, schema = data.silos[1], data.schemas["north"]
    raw = silos()[1]
    parts = split(raw, OwnData(label="outcome"), 0)
    frame = raw.x.iloc[parts.train]
    age, ward = schema.columns[0], schema.columns[2]
    expected = ((frame["age"] - age.mean) / age.scale).fillna(0).to_numpy()
    assert silo.train.x[:, 0] == pytest.approx(expected, abs=1e-6)
    assert (silo.train.x[:, 1] == frame["age"].isna()).all()
    for i, level in enumerate(ward.levels):
        assert (silo.train.x[:, 3 + i] == (frame["ward"] == level)).all()
    assert [CLASSES[y] for y in silo.train.y] == raw.y.iloc[parts.train].tolist()


def test_the_middle_silo_gives_centre_and_scale():
    ages = [s.x["age"].iloc[split(s, OwnData(label="outcome"), 0).train] for s in silos()]
    centre = np.median([each.mean() for each in ages])
    scale = np.median([np.sqrt(((each - centre) ** 2).mean()) for each in ages])
    age = made().schemas["north"].columns[0]
    assert (age.mean, age.scale) == (pytest.approx(centre), pytest.approx(scale))


def test_a_column_that_is_constant_in_most_silos_has_the_scale_of_the_others():
    data = made(lambda name, f: f.assign(site=np.arange(len(f)) % 5 if name == "north" else 2))
    site = next(c for c in data.schemas["north"].columns if c.name == "site")
    assert site.mean == 2 and site.scale == pytest.approx(np.sqrt(2), rel=0.1)


def test_splits_are_keyed_by_seed_and_name_and_keep_the_classes():
    first, again, other = made(), made(), made(seed=1)
    for a, b, c in zip(first.silos, again.silos, other.silos, strict=True):
        assert np.array_equal(a.train.x, b.train.x) and not np.array_equal(a.train.y, c.train.y)
    alone = ready(silos()[:2], OwnData(label="outcome", drop=DROP), 0)
    assert np.array_equal(alone.silos[0].test.y, first.silos[0].test.y)  # whoever else is there
    twins = ready([from_frame(name, hospital(0), "outcome", DROP, name) for name in "ab"], OwnData(label="outcome"), 0)
    assert not np.array_equal(twins.silos[0].train.x, twins.silos[1].train.x)
    for silo in first.silos:
        whole = np.bincount(np.concatenate([silo.train.y, silo.validation.y, silo.test.y]), minlength=3)
        assert np.abs(np.bincount(silo.test.y, minlength=3) - 0.2 * whole).max() <= 1


def test_a_silo_may_lack_a_class_and_is_named():
    data = made()
    assert data.classes == 3 and max(data.silos[-1].train.y) < 2
    said = [(d.column, d.silo, d.what, d.stops) for d in data.differences]
    assert ("outcome", "valley", "lacks class severe", False) in said
    assert ("site", "every silo", "always the same or empty: left out", False) in said


def test_a_silo_standardises_by_itself_and_declares_no_moments():
    data = made(standardize="silo")
    means = {data.schemas[name].columns[0].mean for name in NAMES}
    assert len(means) == 5
    raw = silos()[0]
    parts = split(raw, OwnData(label="outcome"), 0)
    quiet = declare(raw.x, parts.label, parts.train, "auto", shared=False, where="")
    assert quiet.count.numel() == quiet.mean.numel() == quiet.scatter.numel() == 0
    own = data.silos[0].train.x[:, 1 + 1]  # pressure, after age and its indicator
    assert (own.mean(), own.std()) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))


def test_what_leaves_a_silo_is_an_upload_of_a_size_that_rows_do_not_change():
    sizes = []
    for rows in (60, 600):
        raw = from_frame("a", hospital(0, rows), "outcome", DROP, "a")
        parts = split(raw, OwnData(label="outcome"), 0)
        told = declare(raw.x, parts.label, parts.train, "auto", shared=True, where="")
        sizes.append(len(encode_up(told)))
        assert description_of(decode(Statistics, encode_up(told))) == description_of(told)
    assert sizes[0] == sizes[1] < 1000


def test_regression_targets_are_standardised_and_the_schema_knows_their_unit():
    data = made(label="cost", drop=("patient", "outcome"))
    assert data.classes == 0
    schema, silo = data.schemas["north"], data.silos[1]
    raw = silos(label="cost", drop=("patient", "outcome"))[1]
    parts = split(raw, OwnData(label="cost"), 0)
    assert silo.test.y * schema.unit + schema.centre == pytest.approx(raw.y.iloc[parts.test].to_numpy(), rel=1e-4)
    everyone = np.concatenate([s.train.y for s in data.silos])
    assert (everyone.mean(), everyone.std()) == (pytest.approx(0, abs=0.2), pytest.approx(1, abs=0.1))


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (lambda n: np.arange(n) % 3, "auto", ("0", "1", "2")),
        (lambda n: (np.arange(n) % 2).astype(float), "auto", ("0", "1")),
        (lambda n: np.arange(n) % 2 == 0, "auto", ("false", "true")),
        (lambda n: np.arange(n), "auto", ()),
        (lambda n: np.arange(n) + 0.5, "auto", ()),
        (lambda n: np.arange(n) % 3, "regression", ()),
        (lambda n: np.arange(n) % 25, "classification", tuple(map(str, range(25)))),
    ],
)
def test_the_task_is_told_by_the_label_or_given(values, task, classes):
    data = made(lambda name, f: f.assign(outcome=values(len(f))), task=task)
    assert data.schemas["north"].classes == classes


def test_few_values_here_and_many_in_all_are_a_quantity():
    data = made(lambda name, f: f.assign(outcome=10 * NAMES.index(name) + np.arange(len(f)) % 10))
    assert data.classes == 0 and data.schemas["north"].unit > 1


def test_differences_are_told_column_by_column():
    def changed(name, frame):
        if name == "north":
            return frame.drop(columns="age")
        if name == "coast":
            return frame.assign(extra=1)
        if name == "east":
            return frame.assign(pressure=frame["pressure"].map(lambda p: "high" if p > 130 else "low"))
        return frame[frame["ward"] != "icu"] if name == "st-mary" else frame

    with pytest.raises(SchemaDiffers) as caught:
        made(changed)
    said = [(d.column, d.silo, d.what) for d in caught.value.differences if d.stops]
    assert said == [
        ("age", "north", "missing"),
        ("pressure", "east", "text, elsewhere numbers"),
        ("extra", "coast", "not in 4 other silos"),
    ]
    assert "'age' of north: missing" in str(caught.value)
    levels = made(lambda name, f: f[f["ward"] != "icu"] if name == "st-mary" else f).differences
    assert ("ward", "st-mary", "lacks level icu") in [(d.column, d.silo, d.what) for d in levels]


def test_an_empty_column_of_a_silo_is_all_missing():
    data = made(lambda name, f: f.assign(age=np.nan) if name == "north" else f)
    assert (data.silos[1].train.x[:, :2] == [0, 1]).all()
    assert ("age", "north", "no value in any row") in [(d.column, d.silo, d.what) for d in data.differences]


def test_rows_without_a_label_are_left_out_and_counted():
    def some(name, frame):
        return frame.assign(outcome=frame["outcome"].where(frame.index >= 7)) if name == "north" else frame

    data = made(some)
    assert sum(len(getattr(data.silos[1], s)) for s in ("train", "validation", "test")) == 53
    assert ("outcome", "north", "7 rows without one: left out") in [
        (d.column, d.silo, d.what) for d in data.differences
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.head(9), "silo 'north': has 9 rows with a label; 10 or more"),
        (lambda f: f.assign(outcome=None), "silo 'north' label: no row has a label"),
        (lambda f: f.assign(seen="1/5/2024"), "column 'seen': '1/5/2024' in row 1 is no date such as 2024-01-31"),
        (lambda f: f.assign(name=[f"n{i}" for i in range(len(f))]), "look like an identifier or free text"),
        (lambda f: f.assign(pressure=f["pressure"].astype(object).where(f.index > 0, "x")), "'x' is no number, though"),
        (lambda f: f.assign(pressure=np.inf), "column 'pressure': infinity in row 1"),
        (lambda f: f.drop(columns="outcome"), "has no column 'outcome' to predict; it has age"),
    ],
)
def test_tables_that_cannot_be_used_are_refused_by_name(change, said):
    with pytest.raises(BadInput, match=said):
        # sizes of a silo's training part decide who has how many levels, so all are changed alike but for north's name
        made(lambda name, f: change(f) if name == "north" or "seen" in said or "name" in said else f)


def test_nothing_to_learn_is_refused():
    with pytest.raises(BadInput, match="every row of every silo is 'a'"):
        made(lambda name, f: f.assign(outcome="a"))
    with pytest.raises(BadInput, match="every silo has the same number"):
        made(lambda name, f: f.assign(outcome=0.5))
    with pytest.raises(BadInput, match="no column is left to learn from"):
        made(lambda name, f: f[["outcome"]])
    with pytest.raises(BadInput, match="is text, which regression cannot tell"):
        made(task="regression")
    with pytest.raises(BadInput, match="--drop outcome: is the label"):
        made(drop=("outcome",))


def test_a_dropped_column_that_no_silo_has_is_refused(tmp_path):
    folder = hospitals(tmp_path / "h")
    with pytest.raises(BadInput, match="--drop pateint: no table has such a column; did you mean 'patient'"):
        gather(folder, "outcome", ("pateint", "cost"))
    hospital(1).drop(columns="patient").to_csv(folder / "north.csv", index=False)
    assert len(gather(folder, "outcome", DROP)) == 5  # one that some silos have
    np.savez(tmp_path / "a.npz", x=np.zeros((20, 2), np.float32), y=np.arange(20) % 2)
    with pytest.raises(BadInput, match="--drop id: no table has such a column; known: none"):
        gather(only(tmp_path / "a.npz"), "", ("id",))


def test_a_label_that_tells_rows_apart_is_no_class():
    with pytest.raises(BadInput, match=r"label 'patient': 285 different values in 285 rows look like an identifier"):
        made(label="patient", drop=("cost", "outcome"))


def test_pixels_for_tables_are_refused(tmp_path):
    with pytest.raises(BadInput, match="--resize 64: no silo has pictures; leave it out"):
        gather(hospitals(tmp_path / "h"), "outcome", DROP, resize=64)


def test_an_incumbent_that_no_silo_has_is_refused_with_each_column_once():
    with pytest.raises(BadInput, match="--incumbent nope: no silo has it; known: age, cost, patient, pressure"):
        made(incumbent="nope")


def only(file):
    folder = file.parent / "only"
    folder.mkdir()
    return file.rename(folder / file.name).parent


def test_arrays_pairs_and_datasets_are_silos_too(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savez(tmp_path / "b.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])

    class Pairs:
        def __len__(self):
            return 30

        def __getitem__(self, i):
            return x[i], y[i]

    holdings = [*gather(tmp_path, ""), from_dataset("c", Pairs()), from_dataset("d", (x, y))]
    data = ready(holdings, OwnData(), 0)
    assert [s.name for s in data.silos] == ["a", "b", "c", "d"] and data.classes == 3
    own = data.silos[1]
    assert np.array_equal(own.test.x, x[20:]) and [len(own.train), len(own.validation)] == [16, 4]
    assert data.schemas["a"] == Schema("", ("0", "1", "2"), shape=(4,))
    with pytest.raises(BadInput, match=r"inputs .* for 29 labels"):
        from_dataset("d", (x, y[:29]))
    with pytest.raises(BadInput, match="silo 'd': a int; give a DataFrame"):
        from_dataset("d", 3)
    with pytest.raises(SchemaDiffers, match="'samples' of e: arrays 3, elsewhere arrays 4"):
        ready([*holdings, from_dataset("e", (x[:, :3], y))], OwnData(), 0)


def test_pictures_are_labelled_by_their_folders_by_name(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for silo, classes in (("a", ("cat", "dog")), ("b", ("cat", "emu"))):
        for c in classes:
            (tmp_path / silo / c).mkdir(parents=True)
            for i in range(8):
                image.new("RGB", (9, 8), (10 * i, 0, 0)).save(tmp_path / silo / c / f"{i}.png")
    data = ready(gather(tmp_path, ""), OwnData(), 0)
    assert data.schemas["a"].classes == ("cat", "dog", "emu") and data.silos[0].train.x.shape[1:] == (3, 8, 9)
    assert set(data.silos[1].train.y) == {0, 2}


def test_a_folder_that_holds_anything_else_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no such folder"):
        gather(tmp_path / "none", "y")
    with pytest.raises(BadInput, match="is empty"):
        gather(tmp_path, "y")
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(BadInput, match=r"a.xlsx: neither a .csv"):
        gather(tmp_path, "y")
    hospital(0).to_csv(tmp_path / "north.csv", index=False)
    with pytest.raises(BadInput, match="say which column to predict with --label"):
        read_silo(tmp_path / "north.csv", "")


def test_a_folder_of_one_silo_is_warned_of(tmp_path, capsys):
    hospital(0).drop(columns="patient").to_csv(tmp_path / "north.csv", index=False)
    assert len(load(OwnData(path=str(tmp_path), label="outcome"), 0).silos) == 1
    assert "holds one silo, 'north', which has nobody to learn with" in capsys.readouterr().err


def test_a_folder_of_tables_is_one_silo(tmp_path):
    (tmp_path / "north").mkdir()
    for i, part in enumerate((hospital(0).head(30), hospital(0).tail(30))):
        part.to_csv(tmp_path / "north" / f"{i}.csv", index=False)
    assert len(read_silo(tmp_path / "north", "outcome").y) == 60
    hospital(0).drop(columns="age").to_csv(tmp_path / "north" / "3.csv", index=False)
    with pytest.raises(BadInput, match="column 'age' is not in every table"):
        read_silo(tmp_path / "north", "outcome")


def test_two_files_of_one_name_are_refused(tmp_path):
    hospital(0).to_csv(tmp_path / "a.csv", index=False)
    hospital(0).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(BadInput, match="two silos are called 'a'"):
        gather(tmp_path, "outcome")


def test_a_schema_goes_through_plain_values():
    schema = made().schemas["north"]
    assert Schema.read(schema.as_table(), "x") == schema
    assert all(len(column.fence) == 2 for column in schema.columns if column.kind == "number")
    wrong = [[{"name": "a", "scale": -1}], [{"name": "a", "fence": [1.0]}], [{"name": "a", "fence": [2.0, 1.0]}]]
    columns = [("columns", each) for each in wrong]
    for key, value in (("unit", 0), ("shape", [3]), *columns, ("more", 1)):
        with pytest.raises(BadInput):
            Schema.read(schema.as_table() | {key: value}, "x")


def long(rows, **marks):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    return from_frame(
        "long",
        pd.DataFrame({"a": x[:, 0], "b": x[:, 1], **marks, "y": np.where(x[:, 0] > 0, "no", "yes")}),
        "y", tuple(marks), "long",
    )  # fmt: skip


def test_of_a_large_silo_no_more_rows_validate_and_test_than_are_wanted():
    holding = long(10_000)
    every = split(holding, OwnData(label="y", most_validation=0, most_test=0), 0)
    assert [len(every.train), len(every.validation), len(every.test)] == [6400, 1600, 2000]
    limited = OwnData(label="y", most_validation=500, most_test=700)
    fewer = split(holding, limited, 0)
    assert [len(fewer.train), len(fewer.validation), len(fewer.test)] == [8800, 500, 700]
    assert sorted([*fewer.train, *fewer.validation, *fewer.test]) == list(range(10_000))
    (remark,) = capped(fewer)
    assert remark.column == "rows" and remark.silo == "long"
    assert remark.what == (
        "500 validate and 700 test, fewer than their share; the others train (most_validation and most_test)"
    )
    kept = split(holding, replace(limited, keep=1000, test_share=0.5), 0)
    assert [len(kept.train), len(kept.validation), len(kept.test)] == [1000, 200, 700]
    assert [each.what.partition(",")[0] for each in capped(kept)] == ["700 test"]


def test_of_a_rare_class_enough_validate_and_test_whatever_the_limit():
    frame = pd.DataFrame({"a": np.arange(40_000.0), "y": np.where(np.arange(40_000) % 50, "no", "yes")})
    holding = from_frame("rare", frame, "y", (), "rare")
    fewer = split(holding, OwnData(label="y", most_validation=500, most_test=700), 0)
    positive = np.arange(40_000) % 50 == 0
    assert [int(positive[rows].sum()) for rows in (fewer.validation, fewer.test)] == [100, 100]
    assert len(fewer.test) == 5000 and len(fewer.validation) == 5000


@pytest.mark.parametrize("limits", [(160, 200), (0, 0), (10_000, 100_000)])
def test_the_split_of_a_silo_below_the_limits_is_as_without_them(limits):
    holding, free = long(1000), OwnData(label="y", most_validation=0, most_test=0)
    options = OwnData(label="y", most_validation=limits[0], most_test=limits[1])
    one, other = split(holding, options, 0), split(holding, free, 0)
    for name in ("train", "validation", "test"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert capped(one) == []


def test_limits_hold_neither_by_group_nor_by_time_and_not_for_rows_that_came_split():
    limits = {"label": "y", "most_validation": 5, "most_test": 7}
    for by, marks in (("time", np.arange(1000) // 10), ("group", np.arange(1000) // 100)):
        options = OwnData(**limits, **{by: "mark"})
        one = split(long(1000, mark=marks), options, 0)
        other = split(long(1000, mark=marks), replace(options, most_validation=0, most_test=0), 0)
        assert np.array_equal(one.test, other.test) and np.array_equal(one.validation, other.validation)
        assert capped(one) == []
    given = OwnData(label="y", most_validation=500, most_test=700, split_column="side", keep=1000)
    side = np.repeat(["train", "validation", "test"], [6000, 2000, 2000])
    came = split(long(10_000, side=side), given, 0)
    assert [len(came.validation), len(came.test)] == [2000, 2000] and capped(came) == []
    no_validation = split(long(10_000, side=np.repeat(["train", "test"], [8000, 2000])), given, 0)
    assert [len(no_validation.validation), len(no_validation.test)] == [500, 2000]
    assert [each.what for each in capped(no_validation)] == [
        "500 validate, fewer than their share; the others train (most_validation)"
    ]
