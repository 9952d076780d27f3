import numpy as np
import pytest

from coterie.data.catalog import load, resolved
from coterie.data.corrupt import NOISE, Dirty, Looks, Subsample, dirtied, dirty_silos, looking, subsampled
from coterie.data.silo import Part, Pool, Silo
from coterie.errors import BadInput


def silos(count, size=50, classes=10):
    def part(seed):
        y = np.random.default_rng(seed).integers(0, classes, size)
        return Part(np.arange(size, dtype=np.float32)[:, None], y)

    return [Silo(f"silo-{i:02d}", part(3 * i), part(3 * i + 1), part(3 * i + 2)) for i in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_two_of_any_five_in_a_row_are_dirty(seed):
    dirty = np.array(dirty_silos(100, 0.4, seed))
    assert {int(dirty[i : i + 5].sum()) for i in range(96)} == {2}


def test_the_first_dirty_silo_is_drawn():
    assert len({tuple(dirty_silos(5, 0.4, seed)) for seed in range(40)}) == 5


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.01, 1), (0.3, 30), (0.5, 50), (1.0, 100)])
def test_any_share_of_the_silos(share, count):
    assert sum(dirty_silos(100, share, 0)) == count


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 1.0])
def test_exactly_that_share_of_their_training_labels_is_wrong(share):
    before = silos(10)
    after = dirtied(before, 10, Dirty(0.4, share), seed=1)
    for clean, dirty, is_dirty in zip(before, after, dirty_silos(10, 0.4, 1), strict=True):
        assert (clean.train.y != dirty.train.y).mean() == pytest.approx(share if is_dirty else 0)
        assert dirty.train.y.min() >= 0 and dirty.train.y.max() < 10
        assert dirty.train.x is clean.train.x


def test_validation_and_test_are_never_touched():
    before = silos(10)
    copies = [(s.train.y.copy(), s.validation.y.copy(), s.test.y.copy()) for s in before]
    after = dirtied(before, 10, Dirty(1.0, 1.0), seed=1)
    for clean, dirty, (train, validation, test) in zip(before, after, copies, strict=True):
        assert dirty.validation is clean.validation and dirty.test is clean.test
        assert np.array_equal(validation, dirty.validation.y) and np.array_equal(test, dirty.test.y)
        assert np.array_equal(clean.train.y, train)  # what was given is not changed in place


def test_wrong_labels_are_any_others():
    y = np.zeros(4000, np.int64)
    one = [Silo("a", Part(y[:, None], y), Part(y[:0], y[:0]), Part(y[:0], y[:0]))]
    counts = np.bincount(dirtied(one, 5, Dirty(1.0, 1.0), seed=0)[0].train.y, minlength=5)
    assert counts[0] == 0
    assert counts[1:] == pytest.approx([1000] * 4, abs=120)


def test_a_silos_wrong_labels_do_not_depend_on_the_others():
    ten = dirtied(silos(10), 10, Dirty(1.0), seed=1)
    three = dirtied(silos(3), 10, Dirty(1.0), seed=1)
    other = dirtied(silos(3), 10, Dirty(1.0), seed=2)
    for i in range(3):
        assert np.array_equal(ten[i].train.y, three[i].train.y)
        assert not np.array_equal(three[i].train.y, other[i].train.y)


def test_no_two_silos_have_the_same_wrong_labels():
    alike = [Silo(name, *[silos(1)[0].train] * 3) for name in ("a", "b")]
    a, b = dirtied(alike, 10, Dirty(1.0), seed=1)
    assert not np.array_equal(a.train.y, b.train.y)


def test_targets_cannot_be_dirty():
    with pytest.raises(BadInput, match="there are 0 classes, so no label can be wrong"):
        dirtied(silos(2), 0, Dirty(0.4), seed=0)
    assert dirtied(silos(2), 0, Dirty(), seed=0)


def pool(size=1000):
    y = np.arange(size) % 10
    return Pool("p", np.arange(size, dtype=np.float32)[:, None], y, 10, coarse=y // 5, owner=y * 2)


def test_a_share_of_the_pool_is_used():
    taken = subsampled(pool(), Subsample(0.1), seed=0)
    assert len(taken) == 100 and len(np.unique(taken.x)) == 100
    places = taken.x[:, 0].astype(int)
    assert (np.diff(places) > 0).all()
    assert np.array_equal(taken.y, places % 10)
    assert np.array_equal(taken.coarse, taken.y // 5) and np.array_equal(taken.owner, taken.y * 2)
    assert not np.array_equal(subsampled(pool(), Subsample(0.1), seed=1).x, taken.x)
    assert np.array_equal(subsampled(pool(), Subsample(0.1), seed=0).x, taken.x)


def test_all_of_it_is_the_pool_itself():
    whole = pool()
    assert subsampled(whole, Subsample(), seed=0) is whole


def test_none_of_it_is_too_little():
    with pytest.raises(BadInput, match=r"subsample = 0.0001 of 1000 samples leaves none"):
        subsampled(pool(), Subsample(0.0001), seed=0)


LOOKS = ["plain", "inverted", "noisy", "rotated"]
TABLE = {"name": "digits", "split": "iid", "silos": 6}


def test_silos_look_different_in_turn_in_every_split():
    plain, changed = load("digits", TABLE, 1), load("digits", {**TABLE, "looks": LOOKS}, 1)
    assert changed.groups == [0, 1, 2, 3, 0, 1]
    low, high = (extreme([extreme(s.train.x) for s in plain.silos]) for extreme in (np.min, np.max))
    for place, (before, after) in enumerate(zip(plain.silos, changed.silos, strict=True)):
        for split in ("train", "validation", "test"):
            x, y = getattr(before, split).x, getattr(after, split)
            assert y.x.dtype == np.float32 and y.x.shape == x.shape
            assert np.array_equal(y.y, getattr(before, split).y)
            if place % 4 == 0:
                assert np.array_equal(y.x, x)
            elif place % 4 == 1:
                np.testing.assert_allclose(y.x, low + high - x, atol=1e-6)
            elif place % 4 == 2 and len(x):
                assert (y.x - x).std() == pytest.approx(NOISE * (high - low), rel=0.2)
            elif place % 4 == 3:
                assert np.array_equal(y.x[:, 0, 0, :], x[:, 0, :, -1])  # turned to the left


def test_looks_are_written_back_where_there_are_some():
    assert resolved("digits", {**TABLE, "looks": LOOKS})["looks"] == LOOKS
    assert "looks" not in resolved("digits", TABLE)


def test_what_are_no_pictures_have_no_looks():
    with pytest.raises(BadInput, match="looks: samples are not square pictures"):
        looking(silos(2), Looks(("inverted",)), 0)
