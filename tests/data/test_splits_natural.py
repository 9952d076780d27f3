import numpy as np
import pytest

from coterie.data.silo import Pool
from coterie.data.splits import Natural, natural
from coterie.errors import BadInput


def rng(seed=0):
    return np.random.default_rng(seed)


def pool(*sizes, overlap=0, classes=2):
    """Owners with so many samples each, in no order unless they overlap."""
    owner = np.repeat([f"w{i}" for i in range(len(sizes))], sizes)
    owner = owner if overlap else rng(9).permutation(owner)
    y = np.arange(len(owner)) % max(classes, 1)
    return Pool("test set", np.zeros((len(y), 1), np.float32), y, classes, owner=owner, overlap=overlap)


def held(share):
    return np.concatenate([share.train, share.validation, share.test])


def test_every_owner_is_a_silo():
    p = pool(50, 20, 30)
    result = natural(p, Natural(), rng())
    assert [len(held(share)) for share in result.shares] == [50, 20, 30]
    for i, share in enumerate(result.shares):
        assert {*p.owner[held(share)]} == {f"w{i}"}
    assert [len(share.test) for share in result.shares] == [10, 4, 6]
    assert result.validation_from == "train"


def test_who_has_little_is_left_out():
    p = pool(50, 9, 30)
    shares = natural(p, Natural(min_samples=10), rng()).shares
    assert [{*p.owner[held(share)]} for share in shares] == [{"w0"}, {"w2"}]


def test_some_owners_are_drawn_at_random():
    p = pool(*[20] * 30)
    drawn = [
        tuple(p.owner[share.train[0]] for share in natural(p, Natural(silos=5), rng(seed)).shares) for seed in range(9)
    ]
    assert all(len({*names}) == 5 for names in drawn)
    assert len({*drawn}) > 5


def test_few_training_samples_can_be_kept():
    shares = natural(pool(50, 40), Natural(keep=10), rng()).shares
    assert [(len(s.train), len(s.validation)) for s in shares] == [(10, 2), (10, 2)]


def test_parts_of_overlapping_samples_have_nothing_in_common():
    shares = natural(pool(200, 100, overlap=7), Natural(), rng()).shares
    for share, first, size in zip(shares, (0, 200), (200, 100), strict=True):
        assert share.test.tolist() == list(range(first + size - size // 5, first + size))
        assert share.train[0] == first
        # Samples i and j have something in common when they are 7 apart or less.
        assert share.validation[0] - share.train[-1] == 8
        assert share.test[0] - share.validation[-1] == 8


def test_overlapping_samples_can_be_kept_few_or_not_validated_on():
    share = natural(pool(200, overlap=7), Natural(keep=20, validation=0), rng()).shares[0]
    assert share.train.tolist() == list(range(20)) and len(share.validation) == 0
    share = natural(pool(200, overlap=7), Natural(validation=0), rng()).shares[0]
    assert share.test[0] - share.train[-1] == 8


def test_samples_without_classes_will_do():
    assert len(natural(pool(50, 20, classes=0), Natural(), rng()).shares) == 2


@pytest.mark.parametrize(
    ("p", "options", "said"),
    [
        (pool(50, 20), Natural(silos=3), "2 of the 2 owners in test set have 10 samples or more, 3 are asked for"),
        (pool(9, 8), Natural(), "0 of the 2 owners in test set have 10 samples or more, 1 are asked for"),
        (pool(20, overlap=40), Natural(), "silo 0 is left with no training samples"),
        (Pool("test set", np.zeros((4, 1)), np.zeros(4, int), 1), Natural(), "test set has no owner for each sample"),
    ],
)
def test_what_cannot_be_is_said(p, options, said):
    with pytest.raises(BadInput, match=said):
        natural(p, options, rng())
