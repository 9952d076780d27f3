"""Measures, against scikit-learn's and by hand."""

import numpy as np
import pytest
from sklearn import metrics

from coterie.errors import BadInput
from coterie.measure.measures import (
    MEASURES,
    PACKAGED,
    at_threshold,
    best_threshold,
    fitting,
    measure_of,
    oriented,
    reliability,
    taken,
    usual,
)


def rows(classes, n=300, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[y]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return y, np.round(p, 1) if ties else p


def test_large_numbers_are_written_out():
    rmse, accuracy = measure_of("rmse"), measure_of("accuracy")
    assert [rmse.shown(v) for v in (11904.476, 9992.4, 0.01234567, 0.0)] == ["11,900", "9,992", "0.01235", "0"]
    assert [rmse.amount(v) for v in (1634.09, 999.6, 45.24, 2.5e6)] == ["1,630", "1,000", "45.2", "2,500,000"]
    assert accuracy.shown(0.123) == "12.3%" and rmse.shown(1e30) == "1e+30"


@pytest.mark.parametrize("ties", [False, True])
def test_two_classes_are_as_scikit_learn_has_them(ties):
    y, p = rows(2, ties=ties)
    second, guess = p[:, 1], p.argmax(1)
    found = taken(y, p, 2)
    expected = {
        "accuracy": metrics.accuracy_score(y, guess),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, guess),
        "auroc": metrics.roc_auc_score(y, second),
        "auprc": metrics.average_precision_score(y, second),
        "brier": metrics.brier_score_loss(y, second),
        "sensitivity": metrics.recall_score(y, second >= 0.5),
        "specificity": metrics.recall_score(1 - y, second < 0.5),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    if not ties:
        assert found["log_loss"] == pytest.approx(metrics.log_loss(y, p))
        assert found["f1"] == pytest.approx(metrics.f1_score(y, guess))


def test_more_classes_are_means_over_those_present():
    y, p = rows(4)
    there = y != 3  # a silo that lacks a class
    y, p = y[there], p[there]
    found = taken(y, p, 4)
    one_by_one = [metrics.roc_auc_score(y == c, p[:, c]) for c in range(3)]
    assert found["auroc"] == pytest.approx(np.mean(one_by_one))
    assert found["auprc"] == pytest.approx(
        np.mean([metrics.average_precision_score(y == c, p[:, c]) for c in range(3)])
    )
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, p.argmax(1)))
    assert found["f1"] == pytest.approx(metrics.f1_score(y, p.argmax(1), labels=[0, 1, 2], average="macro"))
    assert found["brier"] == pytest.approx(((p - np.eye(4)[y]) ** 2).sum(1).mean())
    assert "sensitivity" not in found


def test_numbers_are_as_scikit_learn_has_them():
    rng = np.random.default_rng(0)
    y = rng.normal(size=80)
    p = y + rng.normal(size=80)
    found = taken(y, p, 0)
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(y, p))
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(y, p))
    assert found["median_error"] == pytest.approx(metrics.median_absolute_error(y, p))
    assert found["r2"] == pytest.approx(metrics.r2_score(y, p))
    assert 0 < found["spearman"] < 1


def test_what_one_class_leaves_undefined_is_no_number():
    y, p = np.zeros(5, dtype=int), np.full((5, 2), 0.5)
    found = taken(y, p, 2)
    assert np.isnan([found["auroc"], found["auprc"], found["sensitivity"]]).all()
    assert found["accuracy"] == 1.0
    assert all(np.isnan(value) for value in taken(y[:0], p[:0], 2).values())


def test_calibration_is_the_gap_between_confidence_and_accuracy():
    p = np.array([[0.9, 0.1]] * 10 + [[0.25, 0.75]] * 4)
    y = np.array([0] * 6 + [1] * 4 + [1] * 4)  # 60% right at 90%, all right at 75%
    assert taken(y, p, 2)["calibration_error"] == pytest.approx((10 * 0.3 + 4 * 0.25) / 14)
    assert reliability(p.max(1), p.argmax(1) == y) == [(0.75, 1.0, 4), (pytest.approx(0.9), 0.6, 10)]


def test_the_threshold_is_youdens_where_there_are_rows_for_it():
    rng = np.random.default_rng(1)
    y = (rng.random(2000) < 0.1).astype(int)
    second = 1 / (1 + np.exp(-(rng.normal(size=2000) + 2 * y - 4)))
    p = np.stack([1 - second, second], 1)
    threshold = best_threshold(y, p)
    false, true, _ = metrics.roc_curve(y, second)
    found = taken(y, p, 2, threshold)
    assert found["sensitivity"] + found["specificity"] - 1 == pytest.approx((true - false).max())
    assert (at_threshold(p, threshold)[:, 1] >= 0.5).tolist() == (second >= threshold).tolist()
    few = y[:60]
    assert best_threshold(few, p[:60]) == pytest.approx((few.sum() + 0.5) / 61)


def test_the_measure_where_nothing_is_said_goes_by_the_labels():
    assert usual(None) == "rmse"
    assert usual([900, 100]) == "auroc"
    assert usual([700, 300]) == "accuracy"
    assert usual([900, 50, 50]) == "accuracy"


def test_the_positive_class_can_be_the_first():
    y, p = rows(2)
    assert taken(*oriented(y, p, 0), 2)["auprc"] == pytest.approx(metrics.average_precision_score(y == 0, p[:, 0]))


def test_an_unknown_measure_names_the_nearest():
    with pytest.raises(BadInput, match="did you mean 'auroc'"):
        measure_of("aurocc")
    assert not measure_of("loss_cloud").higher and measure_of("accuracy_unseen").higher
    assert set(fitting(0)) | set(fitting(2)) == set(PACKAGED)


@pytest.mark.parametrize("name", [name for name in MEASURES if MEASURES[name].influence])
def test_influences_add_up_to_the_measures_variance(name):
    """Over fresh draws of the rows, the measure varies as its influences say."""
    measure, values, said = MEASURES[name], [], []
    for seed in range(300):
        if measure.kind == "classes":
            y, p = rows(2, 150, seed)
        else:
            rng = np.random.default_rng(seed)
            y = rng.normal(size=150)
            p = y + rng.normal(size=150)
        moved = measure.influence(y, p)
        assert abs(moved.mean()) < 1e-9
        values.append(measure.of(y, p))
        said.append((moved**2).sum() / 150**2)
    assert np.mean(said) == pytest.approx(np.var(values), rel=0.25)
