"""Dates as features: read in usual forms, encoded as days, year, month and weekday."""

import datetime

import numpy as np
import pandas as pd
import pytest

import coterie as co
from coterie.data.own.columns import as_days, kind_of
from coterie.data.own.gather import from_frame
from coterie.data.own.ready import OwnData, ready, split
from coterie.data.own.schema import Column, Schema
from coterie.data.own.tables import read_table
from coterie.errors import BadInput

NAMES = ("a", "b", "c")


def table(place, rows=80):
    rng = np.random.default_rng(place)
    days = rng.integers(0, 1400, rows)
    seen = pd.Timestamp("2019-03-01") + pd.to_timedelta(days, unit="D")
    y = np.where(np.cos(2 * np.pi * (seen.month - 1) / 12) + rng.normal(0, 0.3, rows) > 0, "winter", "summer")
    return pd.DataFrame({"seen": seen.strftime("%Y-%m-%d"), "dose": rng.normal(size=rows), "y": y})


def made(change=lambda name, frame: frame, **options):
    holdings = [from_frame(name, change(name, table(place)), "y", (), name) for place, name in enumerate(NAMES)]
    return ready(holdings, OwnData(label="y", **options), 0)


def encoded(values, **column):
    schema = Schema(
        "y", ("a", "b"), columns=(Column("d", "date", **column),), shape=(11 + bool(column.get("indicator")),)
    )
    return schema.encode(pd.DataFrame({"d": values}), "x")


@pytest.mark.parametrize(
    "values",
    [
        ["2024-02-29", None],
        ["2024-2-29T23:59:00Z", ""],
        [" 29.2.2024 ", None],
        [datetime.date(2024, 2, 29), None],
        pd.to_datetime(["2024-02-29 23:59", None]),
        pd.to_datetime(["2024-02-29 23:59", None]).tz_localize("Asia/Tokyo"),
    ],
    ids=str,
)
def test_a_date_is_its_day_however_it_is_written(values):
    column = pd.Series(values)
    days = as_days(column, "x")
    assert kind_of(column, "x") == "date" and days[0] == 8825 and np.isnan(days[1])  # after 2000-01-01


@pytest.mark.parametrize("value", ["1/2/2024", "2024-02-30", "31.13.2023"])
def test_what_is_no_date_is_refused_with_its_row(value):
    with pytest.raises(BadInput, match=f"x: '{value}' in row 2 is no date such as 2024-01-31 or 31.1.2024"):
        as_days(pd.Series(["2024-01-31", value]), "x")


def test_durations_are_refused():
    with pytest.raises(BadInput, match="holds durations"):
        kind_of(pd.Series(pd.to_timedelta([1, 2], unit="D")), "x")


def test_a_date_becomes_days_year_month_and_weekday():
    row, gap = encoded(["2024-01-01", None], mean=8000.0, scale=500.0, indicator=True)  # a Monday
    assert row[0] == pytest.approx((8766 - 8000) / 500)
    assert row[1] == pytest.approx((2024 - (2000 + 8000 / 365.2425)) / (500 / 365.2425), rel=1e-5)
    assert row[2:4] == pytest.approx([0, 1], abs=1e-6)  # January
    assert row[4:11].tolist() == [1, 0, 0, 0, 0, 0, 0] and row[11] == 0
    assert gap.tolist() == [0] * 11 + [1]
    july, sunday = encoded(["1999-07-04", "1999-07-04"])
    assert july[2:4] == pytest.approx([0, -1], abs=1e-6) and sunday[10] == 1


def test_december_is_next_to_january_and_years_at_least_a_year_apart():
    months = encoded([f"2024-{month:02d}-15" for month in range(1, 13)])[:, 2:4]
    steps = np.linalg.norm(months - np.roll(months, 1, axis=0), axis=1)
    assert steps == pytest.approx(steps[0], rel=1e-5)
    assert np.isfinite(encoded(["9999-12-31", "0001-01-01"], mean=1e308, scale=1e-300)).all()


def test_silos_agree_on_dates_and_declare_them_as_days():
    data = made()
    seen = data.schemas["a"].columns[0]
    assert (seen.name, seen.kind, seen.width) == ("seen", "date", 11) and data.silos[0].train.x.shape[1] == 12
    ages = [as_days(table(p)["seen"], "x")[split(from_frame(n, table(p), "y", (), n), OwnData(label="y"), 0).train]
            for p, n in enumerate(NAMES)]  # fmt: skip
    assert seen.mean == pytest.approx(np.median([each.mean() for each in ages]))
    assert not data.differences  # neither an identifier nor another unit
    assert Schema.read(data.schemas["a"].as_table(), "x") == data.schemas["a"]


def test_a_missing_date_is_an_input_of_its_own():
    data = made(lambda name, f: f.assign(seen=f["seen"].where(f.index % 4 > 0)) if name == "a" else f)
    x = data.silos[0].train.x
    assert data.schemas["b"].columns[0].width == 12 and x.shape[1] == 13
    assert 0.1 < x[:, 11].mean() < 0.4 and (x[x[:, 11] == 1, :11] == 0).all()


def test_a_wild_date_is_pulled_in_and_named():
    row = int(split(from_frame("b", table(1), "y", (), "b"), OwnData(label="y"), 0).train[3])

    def wild(name, frame):
        return frame.assign(seen=frame["seen"].where(frame.index != row, "9999-12-31")) if name == "b" else frame

    data = made(wild)
    (found,) = data.differences
    assert (found.column, found.silo) == ("seen", "b") and f"9999-12-31 in row {row + 1}" in found.what
    assert "so taken as 201" in found.what and np.abs(data.silos[1].train.x).max() < 10


def test_an_increasing_date_and_another_era_are_no_remark():
    def other_era(name, frame):
        days = pd.to_datetime(frame["seen"]) - pd.Timedelta(days=9000 * (name == "c"))
        return frame.assign(seen=days.sort_values().to_numpy())

    assert not [each for each in made(other_era).differences if each.column == "seen"]


def test_dates_here_and_text_there_stop_the_run():
    with pytest.raises(co.BadInput, match="'seen' of b: text, elsewhere dates"):
        made(lambda name, f: f.assign(seen=np.where(f["dose"] > 0, "soon", "late")) if name == "b" else f)


def test_a_model_predicts_from_dates_as_in_training():
    frames = {name: table(place) for place, name in enumerate(NAMES)}
    fed = co.Federation(co.silos(frames, label="y"), model="linear", rows="all")
    result = fed.train("fedavg", rounds=15, lr=0.3, quiet=True)
    model = result["b"]
    rows = split(from_frame("b", frames["b"], "y", (), "b"), OwnData(label="y"), 0)
    silo = next(s for s in fed._assembly.silos if s.name == "b")
    assert np.array_equal(model.encode(frames["b"])[rows.test], silo.test.x)
    assert model.score(frames["b"], frames["b"]["y"]) > 0.8  # the season shows in the month alone


def test_dates_of_a_parquet_file_are_dates(tmp_path):
    frame = pd.DataFrame({"seen": [datetime.date(2024, 1, 31), None]})
    frame.to_parquet(tmp_path / "a.parquet")
    read = read_table(tmp_path / "a.parquet")["seen"]
    assert pd.api.types.is_datetime64_any_dtype(read.dtype) and as_days(read, "x")[0] == 8796
