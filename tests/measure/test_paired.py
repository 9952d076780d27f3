"""Two models on the same test samples, against values worked out by hand."""

import numpy as np
import pytest

from coterie.measure.paired import bootstrap, from_counts, p_value


def rng():
    return np.random.default_rng(0)


def test_right_and_wrong_is_mcnemars_exact_test():
    differences = np.array([1] * 8 + [-1] + [0] * 91)
    assert p_value([differences]) == pytest.approx(2 * (1 + 9) / 2**9)  # 8 or 9 heads of 9, both tails
    assert p_value([np.zeros(50)]) == 1.0


def test_other_differences_are_a_paired_t_test():
    differences = np.array([1.0, 2.0, 3.0, 4.0])
    assert p_value([differences]) == pytest.approx(0.03046, abs=1e-5)  # t = 3.873 on 3 degrees of freedom
    assert p_value([np.zeros(4) + 0.5]) == 0.0
    assert p_value([np.array([2.0])]) == 1.0  # one sample tells nothing


def test_the_same_samples_under_another_seed_are_no_new_evidence():
    differences = np.array([1, 1, 1, -1, 0, 0, 0, 1, 0, 0] * 5)
    once, twice = bootstrap([differences], rng()), bootstrap([differences, differences], rng())
    assert (once.low, once.high) == (twice.low, twice.high)
    assert p_value([differences, differences]) == pytest.approx(p_value([differences * 0.5]))


def test_the_interval_is_that_of_the_mean():
    hits = np.array([1.0] * 80 + [0.0] * 20)
    found = bootstrap([hits], rng())
    assert found.value == pytest.approx(0.8)
    assert (found.low, found.high) == pytest.approx((0.8 - 1.96 * 0.04, 0.8 + 1.96 * 0.04), abs=0.015)


def test_seeds_of_different_sizes_are_averaged_over_all_samples():
    assert bootstrap([np.ones(3), np.zeros(1)], rng()).value == pytest.approx(0.75)


def test_counts_alone_find_less_than_pairs():
    score, gain, p = from_counts(0.8, 0.7, 100, rng())
    assert (score.value, gain.value) == pytest.approx((0.8, 0.1))
    half = 1.96 * np.sqrt(0.8 * 0.2 / 100 + 0.7 * 0.3 / 100)
    assert (gain.low, gain.high) == pytest.approx((0.1 - half, 0.1 + half), abs=0.02)
    assert p == pytest.approx(0.1412, abs=1e-3)  # Fisher's exact test of 80/20 against 70/30
    assert p_value([np.array([1] * 10 + [0] * 90)]) < 0.01 < p
