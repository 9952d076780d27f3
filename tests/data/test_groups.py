import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.groups import Groups, groups
from coterie.data.silo import Pool
from coterie.errors import BadInput
from coterie.options import parse


def rng(seed=0):
    return np.random.default_rng(seed)


def pool(*sizes, coarse=None):
    y = rng(99).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Pool("test set", np.zeros((len(y), 1), np.float32), y, len(sizes), None if coarse is None else coarse[y])


def parts(share):
    return share.train, share.validation, share.test


def check_no_index_twice(result):
    used = np.concatenate([part for share in result.shares for part in parts(share)])
    assert len({*used.tolist()}) == len(used)


def check_distribution(p, result, blocks, dominant=0.8):
    """Every part of every silo: its share of dominating classes, evenly spread."""
    for share in result.shares:
        block = blocks[share.group]
        for part in parts(share) if result.validation_from == "pool" else (share.test,):
            counts = np.bincount(p.y[part], minlength=p.classes)
            main = counts[block]
            others = np.delete(counts, block)
            assert main.sum() == int(dominant * len(part) + 0.5)
            assert np.ptp(main) <= 1
            assert np.ptp(others) <= 1


# What the papers' data sets hold, train and test together.
MNIST = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)
FMNIST = (7000,) * 10
SUPERCLASS = np.random.default_rng(5).permutation(np.repeat(np.arange(20), 5))


@pytest.mark.parametrize(
    ("preset", "p", "by_group", "blocks", "validation_from"),
    [
        ("amp-mnist", pool(*MNIST), [(20, n) for n in (500, 400, 300, 200, 100)], None, "pool"),
        ("amp-fmnist", pool(*FMNIST), [(20, n) for n in (600, 500, 400, 300, 200)], None, "train"),
        (
            "amp-emnist",
            pool(*[2500] * 62),
            [(10, 1000), (26, 700), (26, 400)],
            [range(10), range(10, 36), range(36, 62)],
            "pool",
        ),
        (
            "amp-cifar100",
            pool(*[600] * 100, coarse=SUPERCLASS),
            [(5, n) for n in (500, 400, 300, 200, 100) for _ in range(4)],
            [np.flatnonzero(s == SUPERCLASS) for s in range(20)],
            "train",
        ),
    ],
)
def test_presets_are_the_papers(preset, p, by_group, blocks, validation_from):
    result = groups(p, parse(Groups, {"preset": preset}, "[data]"), rng())
    sizes = [n for members, n in by_group for _ in range(members)]
    assert result.validation_from == validation_from
    cut = 0 if validation_from == "pool" else 1
    assert [len(s.train) + cut * len(s.validation) for s in result.shares] == sizes
    assert [len(s.validation) for s in result.shares] == [n // 5 for n in sizes]
    assert [len(s.test) for s in result.shares] == [100] * len(sizes)
    assert [s.group for s in result.shares] == [g for g, (members, _) in enumerate(by_group) for _ in range(members)]
    check_no_index_twice(result)
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    check_distribution(p, result, [list(block) for block in blocks or pairs])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=5),
    st.integers(0, 12),
    st.floats(0, 1),
    st.sampled_from([0, 0.2, 0.5]),
    st.integers(0, 99),
)
def test_counts_are_exact_and_no_sample_is_used_twice(sizes, extra, dominant, validation, seed):
    p = pool(*[2000] * 11)
    silos = len(sizes) + extra
    values = {"silos": silos, "sizes": sizes, "test": 7, "dominant": dominant, "validation": validation}
    result = groups(p, parse(Groups, values, "[data]"), rng(seed))
    assert len(result.shares) == silos
    members = np.bincount([s.group for s in result.shares])
    assert np.ptp(members) <= 1
    assert [len(s.train) for s in result.shares] == [sizes[s.group] for s in result.shares]
    assert [len(s.validation) for s in result.shares] == [int(validation * len(s.train) + 0.5) for s in result.shares]
    check_no_index_twice(result)
    check_distribution(p, result, np.array_split(np.arange(11), len(sizes)), dominant)


def test_validation_is_cut_from_train_when_the_pool_runs_out():
    p = pool(100, 100)
    roomy = groups(p, Groups(silos=2, sizes=(60, 60), test=10, validation=0.2), rng())
    tight = groups(p, Groups(silos=2, sizes=(85, 85), test=10, validation=0.2), rng())
    assert (roomy.validation_from, tight.validation_from) == ("pool", "train")
    assert [len(s.train) for s in roomy.shares] == [60, 60]
    assert [(len(s.train), len(s.validation)) for s in tight.shares] == [(68, 17)] * 2
    check_no_index_twice(tight)
    for share in tight.shares:
        assert np.bincount(p.y[share.validation])[share.group] in (13, 14)


def test_what_is_missing_is_named():
    # Class 1: 80% of 100 + 10 for its own silo, 20% for the other.
    with pytest.raises(BadInput, match=r"class 1 of test set needs 110 samples .* but 20 are missing; use fewer silos"):
        groups(pool(200, 90), Groups(silos=2, sizes=(100, 100), test=10), rng())


def test_a_silo_left_without_training_samples_is_refused():
    with pytest.raises(BadInput, match="silo 0 is left with no training samples"):
        groups(pool(2, 2), Groups(silos=2, groups=2, sizes=(1,), test=1, validation=0.9), rng())


def test_super_classes_dominate():
    coarse = np.array([1, 0, 1, 0])
    p = pool(*[100] * 4, coarse=coarse)
    result = groups(p, Groups(silos=4, groups=2, sizes=(20,), dominating="coarse", test=10), rng())
    check_distribution(p, result, [[1, 3], [0, 2]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preset": "amp-mnist", "silos": 50}, r"silos is already set by preset"),
        ({"preset": "amp-mnist", "sizes": [5]}, r"sizes is already set by preset"),
        ({"preset": "amp-mnist", "dominating": "even"}, r"dominating is already set by preset"),
        ({"preset": "amp-mnits"}, "did you mean 'amp-mnist'"),
        ({"silos": 10}, "sizes is missing"),
        ({"sizes": [10, 20], "groups": 3}, "sizes lists 2 but there are 3 groups"),
        ({"sizes": [10], "groups": 3, "members": [1, 2]}, "members lists 2 but there are 3 groups"),
        ({"sizes": [10], "groups": 3, "silos": 2}, "2 silos cannot fill 3 groups"),
        ({"sizes": [10], "silos": 5, "members": [1, 2]}, "silos = 5 but members add up to 3"),
        ({"sizes": [0]}, r"sizes\[0\]: 0 is out of range"),
        ({"sizes": [10], "dominating": "evn"}, "dominating: expected"),
        ({"sizes": [10], "dominant": 1.5}, "out of range"),
    ],
)
def test_options_that_disagree_are_refused(values, message):
    with pytest.raises(BadInput, match=message):
        parse(Groups, values, "[data]")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Groups(sizes=(5,), groups=3), "2 classes cannot make 3 groups"),
        (Groups(sizes=(5,), groups=2, dominating="coarse"), "no super-classes"),
        (Groups(sizes=(5,), dominating=((0,), (2,))), r"dominating\[1\] = \[2\] is not a list of different classes"),
        (Groups(sizes=(5,), dominating=((0,), ())), r"dominating\[1\] = \[\] is not"),
        (Groups(sizes=(5,), dominating=((0, 0), (1,))), r"dominating\[0\] = \[0, 0\] is not"),
    ],
)
def test_classes_that_do_not_fit_the_data_are_refused(options, message):
    with pytest.raises(BadInput, match=message):
        groups(pool(50, 50), options, rng())
