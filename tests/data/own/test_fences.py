"""Ordinary data stay as they are; a value that nothing explains is pulled in."""

import numpy as np
import pytest

from coterie.data.own.fences import FEWEST, beyond, fence, within


def pulled(values):
    values = np.asarray(values, float)
    return int(beyond(values, fence(values)).sum())


@pytest.mark.parametrize("rows", [10, 30, 100, 3000])
def test_ordinary_data_stay_as_they_are(rows):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert pulled(rng.normal(50, 12, rows)) == 0
        assert pulled(rng.uniform(-1, 1, rows)) == 0
        assert pulled(rng.integers(0, 2, rows)) == 0
        assert pulled(rng.random(rows) < 0.03) == 0
        assert pulled(np.full(rows, 7.0)) == 0
        assert pulled(rng.choice([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 5], rows)) == 0


def test_long_tails_are_pulled_in_seldom():
    rng = np.random.default_rng(0)
    assert pulled(rng.lognormal(0, 1, 10_000)) < 15
    zeros = np.where(rng.random(10_000) < 0.96, 0, rng.lognormal(0, 1, 10_000))
    assert pulled(zeros) < 5


@pytest.mark.parametrize("rows", [FEWEST, 20, 21, 40, 500])
@pytest.mark.parametrize("wild", [9.9e8, -9.9e8, 1e100])
def test_one_wild_value_is_pulled_in(rows, wild):
    values = np.random.default_rng(1).normal(50, 12, rows)
    values[3] = wild
    made = within(values, fence(values))
    assert np.abs(made - 50).max() < 80 and (np.delete(made, 3) == np.delete(values, 3)).all()
    zeros = np.where(np.arange(200) % 10 == 0, np.arange(200) / 10, 0.0)  # zeros and a few counts
    zeros[3] = wild
    assert np.abs(within(zeros, fence(zeros))).max() < 50


@pytest.mark.parametrize("share", [0.03, 0.2, 0.4])
@pytest.mark.parametrize("sign", [-999, 9999])
def test_a_number_that_stands_for_missing_is_pulled_in_however_often_it_is_there(sign, share):
    rng = np.random.default_rng(2)
    values = np.where(there := rng.random(300) > share, rng.normal(50, 12, 300), sign)
    made = within(values, fence(values))
    assert np.abs(made - 50).max() < 80 and (made[there] == values[there]).all()


def test_zero_and_a_second_level_are_no_sign():
    there = np.arange(300) % 5 > 0
    assert pulled(np.where(there, 762.0, 397.0)) == 0  # an airline that flies to two places
    assert pulled(np.where(there, np.random.default_rng(2).normal(762, 5, 300), 397.0)) == 0
    assert pulled(np.where(there, np.random.default_rng(2).normal(50, 1, 300), 0)) == 0  # no visit, no income
    assert pulled(np.where(there, 1, 2)) == pulled(np.where(there, 3, -999)) == 0


def test_too_few_values_tell_nothing_and_missing_ones_stay_missing():
    few = np.array([*range(FEWEST - 2), 9.9e8])
    assert fence(few) == () and within(few, ()) is few and not beyond(few, ()).any()
    some = np.array([*range(30), np.nan, 9.9e8])
    assert np.isnan(within(some, fence(some))[30]) and beyond(some, fence(some)).tolist() == [False] * 31 + [True]
