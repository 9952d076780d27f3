import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.allot import apportion, carve
from coterie.data.silo import Pool
from coterie.data.splits import SPLITS, Dirichlet, Iid, Pathological, Shards, split
from coterie.errors import BadInput
from coterie.options import parse

quick = settings(max_examples=40, deadline=None, derandomize=True)


def rng(seed=0):
    return np.random.default_rng(seed)


def pool(*sizes):
    """A pool with so many samples of each class, in no order."""
    y = rng(99).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Pool("test set", np.arange(len(y), dtype=np.float32)[:, None], y, len(sizes))


def indices(share):
    return np.concatenate([share.train, share.validation, share.test])


def held(result):
    return np.concatenate([indices(share) for share in result.shares])


def table(p, result):
    """How many samples of each class each silo holds."""
    return np.stack([np.bincount(p.y[indices(share)], minlength=p.classes) for share in result.shares])


@quick
@given(st.integers(0, 500), st.lists(st.floats(0.01, 10), min_size=1, max_size=12), st.integers(0, 9))
def test_apportion_adds_up_and_is_never_off_by_one(total, weights, seed):
    weights = np.array(weights)
    counts = apportion(total, weights, rng(seed))
    assert counts.sum() == total
    assert (np.abs(counts - total * weights / weights.sum()) < 1).all()


def test_apportion_gives_the_leftover_to_the_largest_remainder():
    assert apportion(10, np.array([1.4, 6.5, 2.1]), rng()).tolist() == [1, 7, 2]


def test_apportion_breaks_ties_at_random():
    assert {tuple(apportion(1, np.ones(3), rng(s))) for s in range(30)} == {(1, 0, 0), (0, 1, 0), (0, 0, 1)}


@quick
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.floats(0, 1), st.integers(0, 9))
def test_carve_keeps_the_class_proportions(labels, share, seed):
    labels = np.array(labels)
    count = round(share * len(labels))
    drawn, rest = carve(np.arange(len(labels)), labels, count, rng(seed))
    assert len(drawn) == count
    assert sorted([*drawn, *rest]) == list(range(len(labels)))
    expected = np.bincount(labels, minlength=4) * count / len(labels)
    assert (np.abs(np.bincount(labels[drawn], minlength=4) - expected) < 1).all()


@pytest.mark.parametrize("options", [Iid(silos=7), Pathological(silos=7), Shards(silos=7), Dirichlet(silos=7)])
@quick
@given(st.lists(st.integers(40, 90), min_size=3, max_size=6), st.integers(0, 99))
def test_every_sample_is_dealt_once(options, sizes, seed):
    p = pool(*sizes)
    result = split(p, options, rng(seed))
    assert sorted(held(result)) == list(range(len(p)))
    assert len(result.shares) == 7
    assert result.validation_from == "train"
    for share in result.shares:
        n = len(indices(share))
        assert len(share.test) == int(0.2 * n + 0.5)
        assert len(share.validation) == int(0.2 * (n - len(share.test)) + 0.5)


@pytest.mark.parametrize("name", SPLITS)
def test_the_seed_is_the_split(name):
    p = pool(*[100] * 10)
    p = replace(p, coarse=p.y // 2, owner=p.y % 5)
    given_values = {"groups": {"sizes": [10] * 5, "test": 10}, "pachinko": {"silos": 10, "samples": 60}}.get(name, {})
    options = parse(SPLITS[name][0], given_values, "[data]")

    def drawn(seed):
        return [list(part) for s in split(p, options, rng(seed)).shares for part in (s.train, s.validation, s.test)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_no_validation_means_none():
    result = split(pool(30, 30), Iid(silos=3, validation=0), rng())
    assert result.validation_from == "none"
    assert all(len(share.validation) == 0 for share in result.shares)


def test_iid_silos_differ_by_one_sample_at_most():
    sizes = [len(indices(share)) for share in split(pool(50, 53), Iid(silos=10), rng()).shares]
    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_iid_needs_no_classes():
    p = Pool("targets", np.zeros((40, 2), np.float32), np.linspace(0, 1, 40, dtype=np.float32), 0)
    assert sorted(held(split(p, Iid(silos=4), rng()))) == list(range(40))


@pytest.mark.parametrize("options", [Pathological(), Shards(), Dirichlet()])
def test_other_splits_say_that_they_need_classes(options):
    p = Pool("targets", np.zeros((40, 2), np.float32), np.zeros(40, np.float32), 0)
    with pytest.raises(BadInput, match='targets has no class for each sample; use split = "iid"'):
        split(p, options, rng())


@pytest.mark.parametrize(("shares", "k"), [*itertools.product(["equal", "random"], [1, 2, 3])])
def test_pathological_silos_hold_exactly_k_classes(shares, k):
    p = pool(*[60] * 10)
    for seed in range(10):
        result = split(p, Pathological(classes_per_silo=k, shares=shares), rng(seed))
        counts = table(p, result)
        assert ((counts > 0).sum(axis=1) == k).all()
        owners = (counts > 0).sum(axis=0)
        assert owners.max() - owners.min() <= 1
        assert counts.sum() == 60 * (owners > 0).sum()


def test_pathological_shares_are_equal_or_random():
    p = pool(*[120] * 4)
    equal = table(p, split(p, Pathological(silos=8), rng()))
    assert {*equal[equal > 0]} == {30}
    uneven = table(p, split(p, Pathological(silos=8, shares="random"), rng()))
    assert uneven[uneven > 0].std() > 8


def test_pathological_names_the_class_that_is_too_small():
    with pytest.raises(BadInput, match="class 1 needs 6 samples, one for each of its silos, but 4 are missing"):
        split(pool(50, 2), Pathological(silos=6), rng())


def test_pathological_cannot_hold_more_classes_than_there_are():
    with pytest.raises(BadInput, match="classes_per_silo = 3 but test set has 2 classes"):
        split(pool(50, 50), Pathological(classes_per_silo=3), rng())


def test_shards_are_apples():
    p = pool(*[1000] * 10)
    result = split(p, Shards(), rng())
    counts = table(p, result)
    assert counts.shape == (12, 10)
    for column in counts.T:
        assert sorted(column) == [10] * 10 + [100, 800]
    assert len({*counts.argmax(axis=0)}) > 3
    for share, own in zip(result.shares, counts, strict=True):
        test = np.bincount(p.y[share.test], minlength=10)
        assert (np.abs(test - own / 5) < 1).all()


@pytest.mark.parametrize(
    ("silos", "expected"), [(1, [600]), (2, [67, 533]), (3, [60, 60, 480]), (5, [20] * 3 + [60, 480])]
)
def test_shards_for_other_numbers_of_silos(silos, expected):
    p = pool(600, 600)
    for column in table(p, split(p, Shards(silos=silos), rng())).T:
        assert sorted(column) == expected


def test_dirichlet_is_uneven_when_alpha_is_small():
    p = pool(*[500] * 10)

    def spread(alpha):
        return table(p, split(p, Dirichlet(silos=10, alpha=alpha), rng())).std(axis=0).mean()

    assert spread(1000) < 5 < 40 < spread(0.5)
    # Var of a Dir(a) share over n silos is (n - 1) / (n² (n a + 1)); 500 samples of each class.
    assert spread(0.5) == pytest.approx(500 * np.sqrt(9 / (100 * 6)), rel=0.25)


def test_dirichlet_draws_again_until_every_silo_has_enough():
    p = pool(*[60] * 4)
    for seed in range(10):
        assert table(p, split(p, Dirichlet(silos=6, min_samples=20), rng(seed))).sum(axis=1).min() >= 20


def test_dirichlet_gives_up_with_advice():
    with pytest.raises(BadInput, match=r"never gave each of 10 silos 24 samples .*; use fewer silos, a larger alpha"):
        split(pool(120, 120), Dirichlet(silos=10, alpha=0.1, min_samples=24), rng())
    with pytest.raises(BadInput, match="20 silos of 10 samples or more need 100 more than the 100 of test set"):
        split(pool(50, 50), Dirichlet(silos=20), rng())


def test_dirichlet_keeps_few_training_samples_and_validates_on_the_others():
    p = pool(*[400] * 5)
    result = split(p, Dirichlet(silos=8, alpha=5, keep=50, min_samples=100), rng())
    assert result.validation_from == "pool"
    assert [len(share.train) for share in result.shares] == [50] * 8
    assert [len(share.validation) for share in result.shares] == [10] * 8
    assert len({*held(result)}) == len(held(result))


def test_only_silos_with_nothing_to_spare_cut_validation_from_their_training_samples():
    result = split(pool(*[400] * 5), Dirichlet(silos=20, alpha=0.2, keep=50), rng())
    assert result.validation_from == "both"
    for share in result.shares:
        had = len(share.train) + len(share.validation)
        assert (len(share.train), len(share.validation)) == (50, 10) if had >= 60 else len(share.train) <= 50
    poor = [share for share in result.shares if len(share.train) + len(share.validation) < 60]
    assert poor and all(
        len(share.validation) == int(0.2 * (len(share.train) + len(share.validation)) + 0.5) for share in poor
    )


def test_a_silo_left_without_training_samples_is_refused():
    with pytest.raises(BadInput, match="silo 3 is left with no training samples; use fewer silos"):
        split(pool(2, 1), Iid(silos=4), rng())


def test_dirichlet_spreads_groups_of_labels_together():
    p = pool(*[600] * 9)
    result = split(p, Dirichlet(silos=10, alpha=0.4, label_groups=3), rng())
    counts = table(p, result)
    assert counts.sum() == len(p)
    # Labels of one group are dealt in the same proportions, and no others are.
    alike = np.corrcoef(counts.T) > 0.9
    assert sorted(alike.sum(axis=0)) == [3] * 9
    assert (np.corrcoef(table(p, split(p, Dirichlet(silos=10, alpha=0.4), rng())).T) > 0.9).sum() == 9
    with pytest.raises(BadInput, match="9 classes cannot make 10 label_groups"):
        split(p, Dirichlet(silos=10, label_groups=10), rng())


@pytest.mark.parametrize(
    "options", [Iid(keep=20), Pathological(keep=20), Shards(silos=3, keep=20), Dirichlet(silos=8, keep=20)]
)
def test_every_split_can_keep_few_training_samples(options):
    p = pool(*[400] * 5)
    result = split(p, options, rng())
    assert {len(share.train) for share in result.shares} == {20}
    assert result.validation_from == "pool"
    assert len({*held(result)}) == len(held(result))


@pytest.mark.parametrize(
    "options", [Iid(silos=4), Pathological(silos=5, shares="random"), Shards(silos=5), Dirichlet(silos=4, alpha=1.0)]
)
def test_the_sets_own_test_samples_are_dealt_in_the_silos_proportions(options):
    p = pool(400, 300, 500, 200, 300)
    own = np.zeros(len(p), bool)
    own[rng(5).permutation(len(p))[:340]] = True
    result = split(replace(p, test=own), replace(options, test_share="own", validation=0.25), rng())
    assert sorted(np.concatenate([share.test for share in result.shares])) == np.flatnonzero(own).tolist()
    assert not own[np.concatenate([np.r_[share.train, share.validation] for share in result.shares])].any()
    assert sorted(held(result)) == list(range(len(p)))
    for label in range(p.classes):
        train = np.array([(p.y[np.r_[s.train, s.validation]] == label).sum() for s in result.shares])
        test = np.array([(p.y[s.test] == label).sum() for s in result.shares])
        assert np.abs(test - test.sum() * train / train.sum()).max() < 1
    for share in result.shares:
        assert len(share.validation) == pytest.approx(0.25 * (len(share.train) + len(share.validation)), abs=0.51)


def test_own_test_samples_are_refused_where_a_set_has_none():
    with pytest.raises(BadInput, match="test set has no test samples of its own; give test_share as a number"):
        split(pool(9, 9), Iid(silos=2, test_share="own"), rng())
