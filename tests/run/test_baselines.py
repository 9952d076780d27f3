"""What people use today, beside the federation: against scikit-learn itself, and what the verdict makes of it."""

import numpy as np
import pytest
import threadpoolctl
from sklearn.linear_model import LogisticRegression, Ridge

from coterie.data.own.schema import Schema
from coterie.data.own.trees import threads_for
from coterie.data.silo import Part, Silo
from coterie.measure.measures import accuracy, log_loss, rmse
from coterie.run.baselines import POOLED, WEIGHTS, baselines, names, pooled, rows_of


def silo(name, seed, rows=200, classes=2, shift=0.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    signal = x[:, 0] + shift * x[:, 1] + 0.3 * rng.normal(size=rows)
    y = (signal > 0).astype(np.int64) if classes else signal.astype(np.float32)
    cut = (int(0.6 * rows), int(0.8 * rows))
    return Silo(name, *(Part(x[s], y[s]) for s in (slice(cut[0]), slice(*cut), slice(cut[1], None))))


def test_each_silo_alone_is_scikit_learns_own_model():
    silos = [silo("a", 0), silo("b", 1, shift=2.0)]
    found = dict(baselines(silos, 2, 0, {}))
    assert {key.method for key in found} == {*names(2), *(f"{name}{POOLED}" for name in names(2))}
    tries = [[LogisticRegression(C=c, max_iter=500).fit(s.train.x, s.train.y) for c in WEIGHTS] for s in silos]
    losses = [
        [log_loss(each.validation.y, model.predict_proba(each.validation.x)) for model in own]
        for each, own in zip(silos, tries, strict=True)
    ]
    for each, own in zip(silos, tries, strict=True):
        rows = next(
            r for k, r in found.items() if (k.method, k.silo, k.split) == ("logistic regression", each.name, "test")
        )
        model = own[int(np.mean(losses, axis=0).argmin())]  # one penalty for all silos, as methods have one rate
        assert rows.predicted == pytest.approx(model.predict_proba(each.test.x), abs=1e-3)
        assert np.allclose(rows.predicted.sum(1), 1) and rows.predicted.min() > 0
    trees = [
        accuracy(r.labels, r.predicted) for k, r in found.items() if k.method == "boosted trees" and k.split == "test"
    ]
    guess = [accuracy(r.labels, r.predicted) for k, r in found.items() if k.method == "majority" and k.split == "test"]
    assert np.mean(trees) > 0.8 > np.mean(guess)


def test_numbers_come_back_in_their_own_unit():
    from coterie.data.own.schema import Schema

    silos = [silo("a", 0, classes=0)]
    found = dict(baselines(silos, 0, 0, {"a": Schema(unit=10.0, centre=50.0)}))
    rows = next(r for k, r in found.items() if (k.method, k.split) == ("ridge", "test"))
    model = min(
        (Ridge(alpha=1 / w).fit(silos[0].train.x, silos[0].train.y) for w in WEIGHTS),
        key=lambda m: rmse(silos[0].validation.y, m.predict(silos[0].validation.x)),
    )
    assert rows.predicted == pytest.approx(50 + 10 * model.predict(silos[0].test.x), abs=1e-3)
    assert rows.labels == pytest.approx(50 + 10 * silos[0].test.y, abs=1e-3)


def test_a_silo_of_one_class_and_one_without_validation_rows_have_them_too():
    one = silo("a", 0)
    same = Silo(
        "b",
        Part(one.train.x, np.zeros(len(one.train), np.int64)),
        Part(one.validation.x[:0], one.validation.y[:0]),
        one.test,
    )
    found = dict(baselines([one, same], 2, 0, {}))
    assert not any(key.silo == "b" and key.split == "validation" for key in found)
    rows = next(r for k, r in found.items() if (k.method, k.silo, k.split) == ("boosted trees", "b", "test"))
    assert (rows.predicted[:, 0] > 0.99).all()


def test_few_validation_rows_do_not_flatter_a_baseline():
    """Labels by chance in 40 silos: a penalty for each would look better on the 10 rows that chose it than it is."""
    rng = np.random.default_rng(0)
    silos = []
    for i in range(40):
        x, y = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(2, size=60)
        silos.append(Silo(f"s{i}", *(Part(x[s], y[s]) for s in (slice(20), slice(20, 30), slice(30, None)))))
    found = dict(baselines(silos, 2, 0, {}))
    means = {
        split: np.mean([
            log_loss(r.labels, r.predicted)
            for k, r in found.items()
            if (k.method, k.split) == ("logistic regression", split)
        ])
        for split in ("validation", "test")
    }  # fmt: skip
    assert means["validation"] == pytest.approx(means["test"], abs=0.02)


def test_beside_many_classes_or_inputs_stands_a_guess_alone():
    wide = Part(np.zeros((4, 4000), np.float32), np.arange(4) % 2)
    for each, classes in ((Silo("a", wide, wide, wide), 2), (silo("a", 0, classes=30), 30)):
        found = dict(baselines([each], classes, 0, {}))
        assert {key.method for key in found} == {"majority"}  # and no copy of all rows
        assert {key.split for key in found} == {"validation", "test"}


def test_a_pooled_one_is_known_by_its_name():
    assert pooled("ridge, pooled") and not pooled("ridge")


@pytest.mark.parametrize(("rows", "threads"), [(500, 1), (60_000, 2)])
def test_few_rows_are_fitted_by_one_thread(rows, threads):
    """Several wait for each other much longer than they work where the machine is busy."""
    with threadpoolctl.threadpool_limits(2), threads_for(rows):
        assert {each["num_threads"] for each in threadpoolctl.threadpool_info()} == {threads}


def test_labels_far_from_nought_keep_their_digits():
    schema = Schema(columns=(), classes=(), centre=1.7e9, unit=60.0)
    part = Part(np.zeros((3, 1), np.float32), np.array([0.1, 0.2, 0.3], np.float32))
    rows = rows_of(0, part, np.array([6.0, 13.0, 18.0], np.float32), schema)
    assert rows.measured()["mae"] == pytest.approx(1 / 3, rel=1e-5)
