import itertools
from dataclasses import replace

import numpy as np
import pytest
from truth import truth_accuracy

from coterie.data.silo import check_silos
from coterie.data.synthetic import Synthetic, Truth, generate
from coterie.errors import BadInput
from coterie.options import parse

SMALL = Synthetic(silos=30, smallest=20, largest=60, dimension=20)


def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def made():
    return generate(Synthetic(silos=150, labels="rounded"), np.random.default_rng(0))


def both(silos, part):
    data = [getattr(silo, part) for silo in silos]
    return np.concatenate([d.x for d in data]).astype(np.float64), np.concatenate([d.y for d in data])


def test_every_sample_has_its_label(made):
    silos, _ = made
    for part in ("train", "validation", "test"):
        assert both(silos, part)[1].mean() == pytest.approx(0.5, abs=0.03)
    # Also in the first samples of a silo and in the last, which the authors' code treats differently.
    assert np.mean([silo.train.y[:10].mean() for silo in silos]) == pytest.approx(0.5, abs=0.05)
    assert np.mean([silo.test.y[-10:].mean() for silo in silos]) == pytest.approx(0.5, abs=0.05)


def test_the_truth_predicts_what_the_mixture_allows(made):
    """With components that agree by chance only, a silo's best vote is right with the weight of the winning side."""
    silos, truth = made
    votes = [truth.pi @ np.array(signs) for signs in itertools.product([0, 1], repeat=3)]
    expected = np.mean([np.maximum(vote, 1 - vote) for vote in votes])
    assert np.mean(truth_accuracy(truth, silos)) == pytest.approx(expected, abs=0.015)
    assert expected == pytest.approx(0.86, abs=0.02)  # Dir(0.4) over three components: 0.869 on average


def test_one_linear_model_for_all_is_clearly_worse(made):
    silos, truth = made
    x, y = both(silos, "train")
    weights = np.linalg.lstsq(x, 2 * y - 1, rcond=None)[0]
    one = np.mean([((silo.test.x @ weights > 0) == silo.test.y).mean() for silo in silos])
    assert 0.55 < one < np.mean(truth_accuracy(truth, silos)) - 0.05


def test_drawn_labels_have_the_sigmoids_probability():
    silos, truth = generate(Synthetic(silos=100, components=1, noise=0), np.random.default_rng(0))
    x, y = both(silos, "train")
    sigmoid = 1 / (1 + np.exp(-x @ truth.theta[0]))
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.0)):
        near = (sigmoid >= low) & (sigmoid < high)
        assert y[near].mean() == pytest.approx(sigmoid[near].mean(), abs=0.02)


def test_the_truth_about_drawn_labels_is_right_three_times_in_four():
    silos, truth = generate(Synthetic(), np.random.default_rng(0))
    # The vote's 0.87 times the 0.86 with which a label is its likelier class, and both wrong in the rest.
    assert np.mean(truth_accuracy(truth, silos)) == pytest.approx(0.77, abs=0.015)


def test_with_one_component_the_truth_is_almost_always_right():
    silos, truth = generate(Synthetic(silos=20, components=1, noise=0, labels="rounded"), np.random.default_rng(0))
    assert min(truth_accuracy(truth, silos)) == 1
    wrong = Truth(-truth.theta, truth.pi, drawn=False)
    assert max(truth_accuracy(wrong, silos)) == 0


def test_noise_flips_the_labels_it_should():
    quiet, truth = generate(Synthetic(silos=30, components=1, labels="rounded"), np.random.default_rng(0))
    noisy, loud = generate(Synthetic(silos=30, components=1, noise=4.0, labels="rounded"), np.random.default_rng(0))
    assert np.mean(truth_accuracy(truth, quiet)) > 0.97
    # Noise as large as the score's own spread, sqrt(150) / 3: wrong one time in four.
    assert np.mean(truth_accuracy(loud, noisy, "train")) == pytest.approx(0.75, abs=0.03)


def test_sizes_are_the_authors(made):
    silos, truth = made
    sizes = np.array([len(s.train) + len(s.validation) + len(s.test) for s in silos])
    assert sizes.min() >= 50
    assert sizes.max() == 1000
    assert np.median(sizes) == pytest.approx(50 + np.exp(4), rel=0.35)
    for silo, n in zip(silos, sizes, strict=True):
        assert len(silo.test) == int(0.2 * n + 0.5)
        assert len(silo.validation) == int(0.2 * (n - len(silo.test)) + 0.5)
    assert truth.theta.shape == (3, 150)
    assert truth.pi.shape == (150, 3)
    np.testing.assert_allclose(truth.pi.sum(axis=1), 1)
    # Var of one weight of Dir(0.4, 0.4, 0.4) is (1/3)(2/3) / (1.2 + 1).
    assert truth.pi.var() == pytest.approx(2 / 9 / 2.2, rel=0.2)


def test_inputs_and_components_are_uniform(made):
    silos, truth = made
    x, _ = both(silos, "train")
    for values in (x, truth.theta):
        assert np.abs(values).max() <= 1
        assert values.mean() == pytest.approx(0, abs=0.08)
        assert values.var() == pytest.approx(1 / 3, rel=0.1)
    assert silos[0].train.x.dtype == np.float32
    check_silos(silos, 2)


def test_the_generator_is_the_federation():
    def labels(seed):
        return [s.train.y.tolist() for s in generate(Synthetic(silos=3), np.random.default_rng(seed))[0]]

    assert labels(1) == labels(1)
    assert labels(1) != labels(2)


def test_a_smallest_above_the_largest_is_refused():
    with pytest.raises(BadInput, match="smallest = 60 is above largest = 50"):
        parse(Synthetic, {"smallest": 60, "largest": 50}, "[data]")


def test_with_a_test_size_silos_train_on_all_samples_of_their_size():
    sizes = [len(silo.train) + len(silo.validation) + len(silo.test) for silo in generate(SMALL, rng())[0]]
    silos, truth = generate(replace(SMALL, test=500), rng())
    assert [len(silo.train) for silo in silos] == sizes
    assert {len(silo.test) for silo in silos} == {500}
    assert [len(silo.validation) for silo in silos] == [round(0.2 * size + 1e-9) for size in sizes]
    test, train = (np.mean(truth_accuracy(truth, silos, part)) for part in ("test", "train"))
    assert test == pytest.approx(train, abs=0.02)


def test_more_than_memory_holds_is_refused_with_the_test_samples_counted():
    with pytest.raises(BadInput, match="make fewer or smaller silos"):
        parse(Synthetic, {"test": 100_000}, "[data]")
