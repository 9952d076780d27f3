import numpy as np
import pytest

from coterie.data.silo import Pool
from coterie.data.splits import Pachinko, _draw, pachinko
from coterie.errors import BadInput


def rng(seed=0):
    return np.random.default_rng(seed)


def pool(each=60, coarse=5, fine=4):
    """`fine` classes in each of `coarse` super-classes, with so many samples each, in no order."""
    y = rng(9).permutation(np.repeat(np.arange(coarse * fine), each))
    return Pool("test set", np.zeros((len(y), 1), np.float32), y, coarse * fine, coarse=y % coarse)


def held(share):
    return np.concatenate([share.train, share.validation, share.test])


def test_every_silo_has_its_samples_and_no_sample_two_silos():
    p = pool()
    result = pachinko(p, Pachinko(silos=8, samples=100), rng())
    sizes = [(len(s.train), len(s.validation), len(s.test)) for s in result.shares]
    assert sizes == [(64, 16, 20)] * 8
    everything = np.concatenate([held(share) for share in result.shares])
    assert len(np.unique(everything)) == len(everything) == 800


def test_a_silo_has_few_super_classes_and_all_their_classes():
    p = pool(each=600, coarse=20, fine=5)
    result = pachinko(p, Pachinko(silos=40, samples=600), rng())
    coarse = np.stack([np.bincount(p.coarse[held(s)], minlength=20) for s in result.shares]) / 600
    # Var of a Dir(a) share over n super-classes is (n - 1) / (n² (n a + 1)).
    assert coarse.std(axis=1).mean() == pytest.approx(np.sqrt(19 / (400 * 9)), rel=0.15)
    fine = np.stack([np.bincount(p.y[held(s)], minlength=100) for s in result.shares])
    # Within a super-class shares are near even: Var is 4 / (25 (50 + 1)), and that of counting 100 or more samples.
    spreads = [
        part.std() / part.sum()
        for own in fine
        for part in (own[parent::20] for parent in range(20))
        if part.sum() > 100
    ]
    assert np.mean(spreads) == pytest.approx(np.sqrt(4 / (25 * 51)), rel=0.35)


def test_the_whole_set_can_be_shared_out():
    p = pool()
    result = pachinko(p, Pachinko(silos=12, samples=100, alpha=0.05), rng())
    assert sorted(np.concatenate([held(share) for share in result.shares])) == list(range(1200))


def test_an_exhausted_class_is_replaced_within_its_super_class():
    left, parents = np.array([0, 500, 500, 500]), np.array([0, 0, 1, 1])
    options = Pachinko(silos=1, samples=400, alpha=1e6, beta=1e6)
    counts = _draw(left, parents, options, rng())
    assert counts[0] == 0 and counts.sum() == 400
    # Both super-classes weigh half, the empty class or not.
    assert counts[1] == pytest.approx(200, abs=40)
    assert counts[2] == pytest.approx(100, abs=40)


def test_an_exhausted_super_class_is_replaced_by_the_others():
    left, parents = np.array([30, 20, 500]), np.array([0, 0, 1])
    counts = _draw(left, parents, Pachinko(silos=1, samples=400, alpha=1e6, beta=1e6), rng())
    assert counts.tolist() == [30, 20, 350]


def test_weights_that_have_vanished_do_not_stop_it():
    for seed in range(20):
        counts = _draw(
            np.array([5, 5, 400]), np.array([0, 1, 2]), Pachinko(silos=1, samples=300, alpha=1e-4), rng(seed)
        )
        assert counts.sum() == 300 and counts.max() <= 300


def test_the_draw_is_the_seeds():
    p = pool()
    one, two, other = (pachinko(p, Pachinko(silos=3, samples=50), rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(held(a), held(b)) for a, b in zip(one.shares, two.shares, strict=True))
    assert not np.array_equal(held(one.shares[0]), held(other.shares[0]))


def test_what_cannot_be_is_said():
    p = pool()
    with pytest.raises(BadInput, match="100 silos of 600 samples need 58800 more than the 1200 of test set"):
        pachinko(p, Pachinko(), rng())
    with pytest.raises(BadInput, match="test set has no super-classes"):
        pachinko(Pool("test set", p.x, p.y, 20), Pachinko(silos=2, samples=9), rng())
