"""Tests of significance against exact values."""

import math

import numpy as np
import pytest
from scipy.stats import wilcoxon

from coterie.errors import BadInput
from coterie.measure.significance import benjamini_hochberg, beside, compare, holm, signed_rank


def silos(*values):
    return {f"s{i}": value for i, value in enumerate(values)}


def test_five_silos_all_better_have_the_exact_p():
    assert signed_rank(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == pytest.approx(2 / 2**5)


def test_nothing_differs_is_p_one():
    assert signed_rank(np.zeros(6)) == 1.0
    assert signed_rank(np.full(6, 1e-14)) == 1.0  # noise of the last bit is no difference


@pytest.mark.parametrize("silos", [1, 2, 5, 9, 13])
@pytest.mark.parametrize("seed", range(4))
def test_the_p_is_scipys_where_that_is_exact(silos, seed):
    rng = np.random.default_rng(seed)
    for differences in (rng.normal(0.5, 1, silos), rng.integers(-3, 5, silos).astype(float)):  # without ties, with
        expected = wilcoxon(differences).pvalue if differences.any() else 1.0
        assert signed_rank(differences) == pytest.approx(expected, abs=1e-12)


def test_ties_leave_the_p_exact_where_scipy_takes_the_normal_distribution():
    # Twenty silos that gain alike have one rank: the p is that of the sign test.
    assert signed_rank(np.full(20, 2.0)) == pytest.approx(2 / 2**20)
    assert signed_rank(np.array([2.0] * 15 + [-2.0] * 5)) == pytest.approx(2 * 21700 / 2**20)


def test_many_silos_have_the_normal_p_of_scipy():
    differences = np.random.default_rng(0).normal(0.2, 1, 300)
    assert signed_rank(differences) == pytest.approx(wilcoxon(differences).pvalue)


def test_holm_steps_down_and_never_decreases():
    # sorted: 0.01·4, 0.02·3, 0.03·2 raised to 0.06, 0.5·1
    assert holm(np.array([0.5, 0.01, 0.03, 0.02])) == pytest.approx([0.5, 0.04, 0.06, 0.06])
    assert holm(np.array([0.6, 0.9])) == pytest.approx([1.0, 1.0])


def test_compare_holds_every_pair_over_common_silos():
    table = compare({"amp": silos(5, 6, 7, 8, 9), "avg": silos(4, 4, 4, 4, 4, 4), "ft": silos(5, 6, 7, 8, 9)})
    assert list(zip(table["method"], table["other"], strict=True)) == [("amp", "avg"), ("amp", "ft"), ("avg", "ft")]
    assert list(table["silos"]) == [5, 5, 5]
    assert list(table["mean_difference"]) == [3.0, 0.0, -3.0]
    assert list(table["p"]) == pytest.approx([0.0625, 1.0, 0.0625])
    assert list(table["p_holm"]) == pytest.approx([0.1875, 1.0, 0.1875])


def test_methods_without_a_common_silo_are_refused():
    with pytest.raises(BadInput, match="no silo in common"):
        compare({"amp": {"a": 1.0}, "avg": {"b": 1.0}})


def test_one_method_has_nothing_to_compare():
    assert list(compare({"amp": silos(1)}).columns) == ["method", "other", "silos", "mean_difference", "p", "p_holm"]


def test_benjamini_and_hochberg_by_hand():
    assert benjamini_hochberg(np.array([0.04, 0.01, 0.03, 0.5])) == pytest.approx([0.16 / 3, 0.04, 0.16 / 3, 0.5])
    assert len(benjamini_hochberg(np.array([]))) == 0


def test_what_is_significantly_above_or_below_a_reference():
    pairs = [
        {"method": "separate", "other": "fedamp", "mean_difference": -3.0, "p_holm": 0.01},
        {"method": "fedavg", "other": "separate", "mean_difference": -1.0, "p_holm": 0.04},
        {"method": "separate", "other": "fedprox", "mean_difference": -9.0, "p_holm": 0.06},
        {"method": "fedavg", "other": "fedamp", "mean_difference": -9.0, "p_holm": 0.001},
    ]
    assert beside(pairs, "separate", lower_better=False) == {"fedamp": 1, "fedavg": -1}
    assert beside(pairs, "separate", lower_better=True) == {"fedamp": -1, "fedavg": 1}


def test_two_infinite_losses_do_not_differ():
    table = compare({"a": {"x": math.inf, "y": 1.0, "z": 2.0}, "b": {"x": math.inf, "y": 1.0, "z": 2.0}})
    assert (table["mean_difference"][0], table["p"][0]) == (0.0, 1.0)


@pytest.mark.parametrize("silos", [3, 5, 8])
def test_ties_and_zeros_of_few_silos_are_tested_as_scipy_does(silos: int) -> None:
    for seed in range(8):
        found = np.random.default_rng(seed).integers(-3, 5, silos) / 2
        if found.any():
            assert signed_rank(found) == pytest.approx(wilcoxon(found).pvalue, abs=1e-12)
