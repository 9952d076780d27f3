"""What is drawn of predictions equals what scikit-learn and plain NumPy find in them."""

import numpy as np
import pandas as pd
import pytest
from made import SILOS, rows_of
from sklearn.metrics import auc, average_precision_score, confusion_matrix, roc_auc_score, roc_curve

from coterie.measure.tempering import tempered
from coterie.report.predicted import Predicted, predicted
from coterie.report.predictions import bins, confusion, histogram, precision_recall, roc, worst_pairs


def both(classes: int, skill: float = 1.0) -> pd.DataFrame:
    return pd.concat([rows_of("fedamp", silo, classes, skill) for silo in SILOS], ignore_index=True)


def test_the_area_under_the_drawn_curves_is_that_of_all_rows():
    found = predicted(both(2), {}, 1)
    positive, score = found.labels == 1, found.values[:, 1]
    false, true = roc(positive, score)
    assert auc(false, true) == pytest.approx(roc_auc_score(positive, score), abs=5e-3)
    recall, precision = precision_recall(positive, score)
    area = float((np.diff(recall) * precision[1:]).sum())
    assert area == pytest.approx(average_precision_score(positive, score), abs=2e-2)


def test_few_rows_are_drawn_whole():
    found = predicted(rows_of("fedamp", "east", 2, 1.0), {}, 1)
    false, true, _ = roc_curve(found.labels == 1, found.values[:, 1], drop_intermediate=False)
    assert np.allclose(roc(found.labels == 1, found.values[:, 1]), [false, true])


def test_the_positive_class_is_the_study_s():
    frame = both(2)
    other = predicted(frame, {}, 0)
    assert other.names == ["c1", "c0"] and np.array_equal(other.labels == 1, frame["label"] == "c0")
    assert np.array_equal(other.values[:, 1], frame["probability_c0"])


def test_each_silo_is_cut_at_its_own_threshold():
    frame = both(2)
    cuts = {"east": 0.2, "north": 0.5, "west": 0.9}
    found = predicted(frame, {"thresholds": cuts}, 1)
    guess = frame["probability_c1"].to_numpy() >= frame["silo"].map(cuts).to_numpy()
    assert np.array_equal(confusion(found), confusion_matrix(frame["label"] == "c1", guess))
    east = frame[frame["silo"] == "east"]
    expected = confusion_matrix(east["label"] == "c1", east["probability_c1"] >= 0.2)
    assert np.array_equal(confusion(found.of("east")), expected)


def test_of_many_classes_the_pairs_most_often_confused_are_named():
    found = predicted(both(25, skill=0.5), {}, 1)
    pairs = worst_pairs(found)
    counts = confusion(found)
    np.fill_diagonal(counts, 0)
    assert len(pairs) == 10 and [n for *_, n in pairs] == sorted(counts.ravel(), reverse=True)[:10]
    assert all(counts[int(a[1:]), int(b[1:])] == n for a, b, n in pairs)


def test_before_tempering_is_the_model_s_own_probability():
    raw = both(3)
    chances = [c for c in raw.columns if c.startswith("probability_")]
    made = raw.copy()
    made[chances] = tempered(raw[chances].to_numpy(), 2.5)
    found = predicted(made, {"temperatures": dict.fromkeys(SILOS, 2.5)}, 1)
    assert found.raw is not None and np.allclose(found.raw, raw[chances], atol=1e-5)
    shares = bins(found.labels, found.raw)
    assert sum(n for *_, n in shares) == len(raw)
    assert predicted(raw, {}, 1).raw is None


def test_of_two_classes_reliability_is_that_of_the_positive():
    found = predicted(both(2), {}, 1)
    for chance, share, n in bins(found.labels, found.values):
        mine = np.isclose(np.floor(np.minimum(found.values[:, 1] * 10, 9)), np.floor(min(chance * 10, 9)))
        assert mine.sum() == n and share == pytest.approx((found.labels[mine] == 1).mean())


def test_numbers_have_residuals_of_every_row():
    frame = both(0)
    found = predicted(frame, {}, 1)
    assert not found.names and np.allclose(found.values, frame["prediction"])
    middles, counts = histogram(found)
    assert counts.sum() == len(frame) and np.all(np.diff(middles) > 0)


def test_rows_that_cannot_be_drawn_are_left_out():
    frame = both(2)
    assert predicted(frame.iloc[:0], {}, 1) is None
    assert predicted(frame.drop(columns=["probability_c0", "probability_c1"]), {}, 1) is None
    assert predicted(frame.assign(probability_c1=np.nan), {}, 1) is None


def test_it_shows_no_row():
    found = predicted(both(2), {}, 1)
    assert isinstance(found, Predicted) and repr(found) == "Predicted(180 rows)"
