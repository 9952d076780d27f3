"""Two models on the same rows of one silo: values by hand, and how often the intervals are wrong."""

import numpy as np
import pytest
from scipy.stats import t as student

from coterie.measure.measures import MEASURES
from coterie.measure.paired import difference, interval, scored

ACCURACY = MEASURES["accuracy"]


def guesses(hits):
    """Two classes, the label always the second."""
    right = np.asarray(hits, dtype=float)
    return np.ones(len(right), dtype=int), np.stack([1 - right, right], 1) * 0.8 + 0.1


def gain(own, other, units=None):
    (y, p), (_, q) = guesses(own), guesses(other)
    return difference(ACCURACY, [scored(ACCURACY, y, p, units)], [scored(ACCURACY, y, q, units)])


def test_the_interval_is_bonett_and_prices():
    own, other = np.ones(100), np.array([0] * 12 + [1] * 88)
    own[50:54] = 0  # 12 won, 4 lost
    found = gain(own, other)
    assert found.value == pytest.approx(0.08)
    won, lost = 13 / 102, 5 / 102
    theirs = np.sqrt((won + lost - (won - lost) ** 2) / 102)
    assert found.error == pytest.approx(theirs, rel=0.04)
    assert (found.low + found.high) / 2 == pytest.approx(8 / 102)
    assert found.high - found.low == pytest.approx(2 * student.ppf(0.975, 99) * found.error)


def test_two_rows_on_which_both_agree_decide_nothing():
    found = gain([1, 1], [1, 1])
    assert found.low < -0.3 and found.high > 0.3 and found.p == 1
    assert not found.within(0.02, 0.05)
    assert gain(np.ones(2000), np.ones(2000)).within(0.02, 0.05)


def test_six_rows_all_won_may_be_chance():
    assert gain([1] * 4, [0] * 4).low < 0
    assert gain([1] * 30, [0] * 30).low > 0


def test_rows_of_one_patient_count_as_one():
    own, other = np.tile([1, 1, 1, 0], 25), np.tile([1, 0, 1, 0], 25)
    apart = gain(own, other)
    assert gain(np.sort(own), np.sort(other), np.arange(100) // 5).error > 1.5 * apart.error
    copied = gain(np.repeat(own, 5), np.repeat(other, 5), np.repeat(np.arange(100), 5))
    assert copied.error == pytest.approx(apart.error, rel=0.05)


def test_the_same_rows_under_another_seed_are_no_new_evidence():
    own, other = np.tile([1, 1, 1, 0], 25), np.tile([1, 0, 1, 0], 25)
    (y, p), (_, q) = guesses(own), guesses(other)
    mine, theirs = scored(ACCURACY, y, p), scored(ACCURACY, y, q)
    once, thrice = difference(ACCURACY, [mine], [theirs]), difference(ACCURACY, [mine] * 3, [theirs] * 3)
    assert thrice.error == pytest.approx(once.error)


def test_seeds_that_disagree_widen_the_interval():
    (y, good), (_, bad), (_, base) = guesses(np.ones(400)), guesses(np.arange(400) % 2), guesses(np.arange(400) % 4 > 0)
    alone = scored(ACCURACY, y, base)
    agree = difference(ACCURACY, [scored(ACCURACY, y, good)] * 2, [alone] * 2)
    apart = difference(ACCURACY, [scored(ACCURACY, y, good), scored(ACCURACY, y, bad)], [alone] * 2)
    assert apart.error > 3 * agree.error


def test_a_score_stays_within_its_bounds():
    y, p = guesses(np.ones(20))
    found = interval(ACCURACY, [scored(ACCURACY, y, p)])
    assert found.high == 1.0 and 0.7 < found.low < 1.0


def test_a_measure_without_a_known_influence_has_an_interval_too():
    values, widths, measure = [], [], MEASURES["auprc"]
    for seed in range(60):
        rng = np.random.default_rng(seed)
        y = (rng.random(300) < 0.3).astype(int)
        second = 1 / (1 + np.exp(-(rng.normal(size=300) + 1.5 * y)))
        found = interval(measure, [scored(measure, y, np.stack([1 - second, second], 1))])
        values.append(found.value)
        widths.append(found.error)
    assert np.mean(widths) == pytest.approx(np.std(values), rel=0.4)


def twins(rng, n, lift, rate):
    """Labels, and the probabilities of two models that see much of the same; the first is better by `lift`."""
    y = (rng.random(n) < rate).astype(int)
    common = rng.normal(size=n)
    logits = [(1 + more) * y + 0.8 * common + 0.6 * rng.normal(size=n) - 1 for more in (lift, 0)]
    return y, [np.stack([1 / (1 + np.exp(z)), 1 / (1 + np.exp(-z))], 1) for z in logits]


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "auroc", "brier", "log_loss"])
@pytest.mark.parametrize("n", [3, 10, 40, 200, 1500])
def test_equal_models_are_seldom_told_apart(name, n):
    """Of silos whose true gain is zero, at most one in twenty is called better, or worse: 2.5% each, and its chance."""
    rng, measure, draws = np.random.default_rng(n), MEASURES[name], 400
    apart = 0
    for _ in range(draws):
        y, (p, q) = twins(rng, n, 0.0, 0.25)
        found = difference(measure, [scored(measure, y, p)], [scored(measure, y, q)])
        apart += found.low > 0 or found.high < 0
    assert apart / draws <= 0.05 + 1.7 * np.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("name", ["auroc", "auprc"])
@pytest.mark.parametrize(("positive", "negative", "rows"), [(2, 30, 20), (10, 40, 10)])
def test_few_patients_of_a_class_with_many_rows_decide_little(name, positive, negative, rows):
    """Equal models, each right or wrong about a whole patient: not the rows count, but the patients of either class."""
    rng, measure, draws = np.random.default_rng(0), MEASURES[name], 200
    patient = np.repeat(np.arange(positive + negative), rows)
    y = (patient < positive).astype(int)
    apart = 0
    for _ in range(draws):
        scores = (1.2 * y + rng.normal(size=positive + negative)[patient] + 0.3 * rng.normal(size=len(y)) for _ in "ab")
        both = [scored(measure, y, np.stack([-each, each], 1), patient) for each in scores]
        apart += difference(measure, both[:1], both[1:]).p < 0.05
    assert apart / draws <= 0.05


@pytest.mark.parametrize("n", [30, 300, 3000])
def test_a_gain_at_the_margin_is_seldom_called_equivalent(n):
    rng, draws, wrong = np.random.default_rng(n), 400, 0
    for _ in range(draws):
        u = rng.random(n)
        other = u < 0.7
        own = np.where(rng.random(n) < 0.8, u, rng.random(n)) < 0.72
        wrong += gain(own, other).within(0.02, 0.05)
    assert wrong / draws <= 0.05 + 1.7 * np.sqrt(0.05 * 0.95 / draws)


def test_a_large_gain_is_found():
    rng, found = np.random.default_rng(0), 0
    for _ in range(100):
        y, (p, q) = twins(rng, 400, 0.8, 0.25)
        measure = MEASURES["auroc"]
        found += difference(measure, [scored(measure, y, p)], [scored(measure, y, q)]).low > 0
    assert found > 90
