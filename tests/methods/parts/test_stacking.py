"""Mixing candidates by held-out data, against NumPy, and the promises it makes."""

import numpy as np
import pytest
import torch
from oracle import close

from coterie.methods.parts import stacking
from coterie.methods.parts.stacking import FOLDS, ITERATIONS, KAPPAS, TEMPERATURES


def made(seed: int, c: int, n: int, spread: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Random log-likelihoods (c, n) and a prior."""
    draw = np.random.default_rng(seed)
    prior = draw.dirichlet(np.full(c, 0.3)) * 0.98 + 0.02 / c
    return draw.normal(-1, spread, (c, n)) + draw.normal(0, 1, (c, 1)), prior / prior.sum()


def em(ll: np.ndarray, prior: np.ndarray, kappa: float, iterations: int = ITERATIONS) -> tuple[np.ndarray, np.ndarray]:
    """The two lines of EM, as they are written: the weights, and the samples' shares by them."""
    pi, n = prior.copy(), ll.shape[1]
    for _ in range(iterations):
        r = pi[:, None] * np.exp(ll)
        r /= r.sum(0)
        pi = (r.sum(1) + kappa * prior) / (n + kappa)
    r = pi[:, None] * np.exp(ll)
    return pi, r / r.sum(0)


def tensors(ll: np.ndarray, prior: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.tensor(ll)[None], torch.ones(1, ll.shape[1]).double(), torch.tensor(prior)[None]


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_em_from_the_prior_and_each_sample_is_judged_by_the_others(seed):
    ll, prior = made(seed, 4, 17)
    every = torch.tensor(KAPPAS).double()
    likelihoods, mask, priors = tensors(ll, prior)
    pi = stacking.weigh(likelihoods, mask, priors, every, ITERATIONS)
    left = stacking.others(likelihoods, mask, priors, every)
    apart = stacking.left_out(likelihoods, mask, left)
    for g, kappa in enumerate(KAPPAS):
        close(pi[0, g], em(ll, prior, kappa)[0])
        for fold in range(FOLDS):
            inside = np.arange(ll.shape[1]) % FOLDS == fold
            others = em(ll[:, ~inside], prior, kappa)[0]
            close(left[0, g][:, inside], others[:, None].repeat(inside.sum(), 1))
            close(apart[0, g][inside], np.log((others[:, None] * np.exp(ll[:, inside])).sum(0)))


def test_what_held_out_samples_are_worth_to_the_mixture_is_what_fresh_ones_are():
    """Candidates that differ by chance alone: few samples, by which weights are found, must not look better for it."""
    draw = np.random.default_rng(0)
    given, fresh = (torch.tensor(draw.normal(-1, 1, (400, 6, 25))) for _ in range(2))
    found = stacking.weighed(given, torch.ones(400, 25).double(), torch.full((400, 6), 1 / 6).double(), kappa(3))

    def worth(samples: torch.Tensor) -> float:
        return float((found.weights[..., None] * samples.exp()).sum(1).log().mean())

    assert worth(given) > worth(fresh) + 0.08  # the weights were made for them
    assert abs(float(found.left_out.mean()) - worth(fresh)) < 0.01


def test_silos_side_by_side_are_each_alone_and_filling_counts_for_nothing():
    (short, prior), (long, _) = made(0, 3, 5), made(1, 3, 12)
    filled = np.concatenate([short, np.full((3, 7), 99.0)], 1)
    mask = torch.tensor(np.stack([np.arange(12) < 5, np.arange(12) < 12])).double()
    both = stacking.weighed(
        torch.tensor(np.stack([filled, long])), mask, torch.tensor(np.stack([prior] * 2)), kappa(30)
    )
    for row, ll in enumerate((short, long)):
        alone = stacking.weighed(*tensors(ll, prior), kappa(30))
        close(both.weights[row], alone.weights[0])
        close(both.left_out[row, : ll.shape[1]], alone.left_out[0])


def kappa(value: float) -> torch.Tensor:
    return torch.tensor(value).double()


def regret(ll: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """By how much each candidate's summed log-loss is lower than the mixture's: (c,)."""
    top = ll.max(0)
    return ll.sum(1) - (np.log((weights[:, None] * np.exp(ll - top)).sum(0)) + top).sum()


@pytest.mark.parametrize("worth", [3.0, 100.0, 1e9])
@pytest.mark.parametrize("seed", range(40))
def test_no_candidate_is_better_by_more_than_the_log_of_its_prior(seed, worth):
    n, c = [1, 2, 7, 40, 300][seed % 5], [2, 3, 8][seed % 3]
    ll, prior = made(seed, c, n, spread=[0.1, 1.0, 6.0][seed % 3])
    found = stacking.weighed(*tensors(ll, prior), kappa(worth))
    assert (regret(ll, found.weights[0].numpy()) <= np.log(1 / prior) + 1e-9).all()


@pytest.mark.parametrize("worth", [3.0, 1e9])
@pytest.mark.parametrize("n", [1, 10, 500])
def test_the_bound_holds_against_an_adversary(n, worth):
    """The candidate that the prior likes least is perfect; the others are wrong and sure of it, or take turns."""
    prior = np.array([0.001, 0.4995, 0.4995])
    wrong = np.stack([np.zeros(n), np.full(n, -30.0), np.full(n, -30.0)])
    turns = np.stack([np.full(n, -0.7), *(np.where(np.arange(n) % 2 == i, 0.0, -40.0) for i in range(2))])
    near = np.stack([np.full(n, -0.5), np.full(n, -0.5 - 8 / n), np.full(n, -0.5 - 6.5 / n)])
    for ll in (wrong, turns, near):
        found = stacking.weighed(*tensors(ll, prior), kappa(worth))
        assert (regret(ll, found.weights[0].numpy()) <= np.log(1 / prior) + 1e-9).all()


def test_one_candidate_that_is_much_better_takes_it_all_and_a_useless_one_nothing():
    draw = np.random.default_rng(0)
    ll = np.stack([draw.normal(-0.1, 0.05, 200), draw.normal(-3, 1, 200), np.full(200, np.log(0.1))])
    weights = stacking.weighed(*tensors(ll, np.full(3, 1 / 3)), kappa(3)).weights[0]
    assert weights[0] > 0.98 and weights[2] < 0.01


@pytest.mark.parametrize(
    ("right", "rows", "least", "mean"),
    [
        (1.0, 10, 0.34, 0.43),
        (1.0, 20, 0.99, 0.99),
        (1.0, 40, 0.99, 0.99),
        (0.995, 40, 0.71, 0.93),
        (0.995, 400, 0.93, 0.97),
    ],
)
def test_a_much_better_incumbent_has_99_percent_of_the_weight_where_it_never_errs(right, rows, least, mean):
    """100 silos; the other seven candidates are right in 80% of the rows, and all err independently of each other."""
    rates = np.array([right] + [0.8] * 7)
    sure = np.minimum(rates, 0.995)[:, None]
    found = np.random.default_rng(0).random((100, 8, rows)) < rates[:, None]
    likelihoods = torch.tensor(np.log(np.where(found, sure, 1 - sure)))
    mask, prior = torch.ones(100, rows).double(), torch.full((100, 8), 1 / 8).double()
    weights = stacking.weighed(likelihoods, mask, prior, kappa(3)).weights[:, 0]
    if least == 0.99:
        assert weights.min() >= least
    else:
        assert [round(float(each), 2) for each in (weights.min(), weights.mean())] == [least, mean]


def test_a_sequence_is_one_sample_and_its_mixture_keeps_the_bound_place_by_place():
    draw = np.random.default_rng(3)
    p = draw.dirichlet(np.full(4, 0.3), (3, 6, 5))  # candidates, sequences, places, classes
    y = draw.integers(4, size=(6, 5))
    chosen = np.take_along_axis(p, y[None, ..., None].repeat(3, 0), 3)[..., 0]
    loss = torch.tensor(-np.log(chosen).mean(2))
    given = stacking.class_likelihoods(torch.tensor(p).movedim(3, 2), loss, torch.tensor([1.0, 2.0]))
    close(given[0], np.log(chosen).mean(2))
    cooler = np.sqrt(p) / np.sqrt(p).sum(3, keepdims=True)
    close(given[1], np.log(np.take_along_axis(cooler, y[None, ..., None].repeat(3, 0), 3)[..., 0]).mean(2))
    prior = np.array([0.9, 0.09, 0.01])
    weights = stacking.weighed(*tensors(given[0].numpy(), prior), kappa(1e9)).weights[0].numpy()
    mixed = np.log((weights[:, None, None] * chosen).sum(0)).mean(1).sum()
    assert (np.log(chosen).mean(2).sum(1) - mixed <= np.log(1 / prior) + 1e-9).all()


def test_the_common_prior_is_all_silos_samples_by_candidate_with_a_little_for_each():
    counts = torch.tensor([[3.0, 1.0, 0.0], [5.0, 1.0, 0.0]]).double()
    close(stacking.common_prior(counts), 0.98 * np.array([0.8, 0.2, 0.0]) + 0.02 / 3)
    close(stacking.common_prior(torch.zeros(2, 4).double()), np.full(4, 0.25))


def test_a_temperature_is_where_the_summed_log_loss_is_lowest():
    draw = np.random.default_rng(2)
    z = draw.normal(0, 3, (3000, 4))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    soft = p ** (1 / 2.3)
    y = np.array([draw.choice(4, p=row / row.sum()) for row in soft])
    loss = torch.tensor(-np.log(p[np.arange(len(y)), y]))[None]
    every = torch.tensor(TEMPERATURES).double()
    found = stacking.class_likelihoods(torch.tensor(p)[None], loss, every)
    by_hand = np.log((p**0.5 / (p**0.5).sum(1, keepdims=True))[np.arange(len(y)), y])
    close(found[TEMPERATURES.index(2.0), 0], by_hand)
    assert abs(float(stacking.fitted_temperatures(-found.sum(2).T)[0]) - 2.3) < 0.15
    close(stacking.fitted_temperatures(torch.zeros(1, len(every)).double()), [1.0])  # nothing known


def test_few_rows_that_are_all_right_make_no_candidate_much_surer_and_many_do():
    every = torch.tensor(TEMPERATURES).double()

    def found(rows: int, right: bool) -> float:
        p = torch.tensor([0.8, 0.2] if right else [0.2, 0.8]).double().expand(1, rows, 2)
        curves = -stacking.class_likelihoods(p, -p[..., 0].log(), every).sum(2).T
        return float(stacking.fitted_temperatures(curves)[0])

    assert found(3, right=True) > 0.75 and found(1, right=True) > 0.88
    assert found(500, right=True) == pytest.approx(0.5, abs=0.01)  # the end of the grid
    assert found(3, right=False) > 2  # that it should be less sure is believed


def test_numbers_are_weighed_under_gaussians_of_each_candidates_own_variance():
    close(stacking.fitted_variances(torch.tensor([9.0, 0.0]).double(), torch.tensor(4.0).double()), [2.0, 0.2])
    squares = np.array([[0.5, 2.0]])
    expected = np.log(np.exp(-squares / (2 * 1.7)) / np.sqrt(2 * np.pi * 1.7))
    close(stacking.number_likelihoods(torch.tensor(squares), torch.tensor(1.7, dtype=torch.float64)), expected)


def closes(off: np.ndarray, least: np.ndarray | None, level: float, units: np.ndarray | None = None) -> torch.Tensor:
    """Whether the gate closes, by all samples and by those outside each one's fold: (k, 1 + n)."""
    given = [None if each is None else torch.tensor(each).expand(off.shape) for each in (least, units)]
    return stacking.gate(torch.tensor(off), given[0], torch.ones(off.shape).double(), level, given[1])


@pytest.mark.parametrize("n", [8, 20, 60, 200])
@pytest.mark.parametrize("wrong", [0.02, 0.1, 0.3])
def test_the_gate_seldom_closes_by_chance_however_rare_the_errors_are(n, wrong):
    """A candidate that is sure of itself and seldom wrong: few samples show none of what makes it the worse one."""
    draw = np.random.default_rng(0)
    ahead = wrong / (1 - wrong)
    off = np.where(draw.random((4000, n)) < wrong, -1.0, ahead)  # its mean is 0
    for level in (0.05, 0.0025):
        assert closes(off, np.array(-1.0), level)[:, 0].double().mean() < level + 3 * np.sqrt(level / 4000)
    if n * ahead > 40:
        assert closes(off + ahead, np.array(ahead - 1), 0.0025)[:, 0].double().mean() > 0.8


def test_the_gate_closes_for_a_clear_winner_and_not_by_few_samples():
    off = np.random.default_rng(3).normal(1, 0.5, (200, 40))
    for least in (np.array(-2.0), None):
        assert closes(off, least, 0.001)[:, 0].double().mean() > 0.95
        assert not closes(off[:, : stacking.FEWEST - 1] + 9, least, 0.5).any()


def test_of_numbers_whose_differences_have_no_bound_the_gate_seldom_closes_by_chance():
    none = np.random.default_rng(3).normal(0, 1, (2000, 40))
    assert closes(none, None, 0.05)[:, 0].double().mean() < 0.05


@pytest.mark.parametrize("n", [8, 12, 30])
def test_of_numbers_errors_that_are_mostly_smaller_do_not_close_the_gate_when_seldom_ones_outweigh_them(n):
    """A candidate with normal errors that in the mean is as good as a mixture of it and two others, by its density."""
    sizes = np.array([0.8258, 1.0, 1.0])
    errors = sizes[:, None, None] * np.random.default_rng(1).normal(size=(3, 4000, n))
    density = np.exp(-0.5 * (errors / sizes[:, None, None]) ** 2) / sizes[:, None, None]
    off = np.log(density[0] / density.mean(0))
    for level in (0.05, 0.005):
        assert closes(off, None, level)[:, 0].double().mean() < level + 3 * np.sqrt(level / 4000)


@pytest.mark.parametrize("least", [-3.0, None])
def test_rows_of_one_unit_are_one_to_the_gate(least):
    """10 patients of 20 rows each, whose differences are the patient's own: nothing is better than anything."""
    draw = np.random.default_rng(4)
    patients = np.repeat(np.arange(10), 20)
    none = draw.uniform(-2, 2, (2000, 10))[:, patients] + draw.uniform(-1, 1, (2000, 200))
    bound = None if least is None else np.array(least)
    for level in (0.05, 0.005):
        assert closes(none, bound, level, patients)[:, 0].double().mean() <= 1.25 * level + 0.003
    assert closes(0.1 * none + 3, bound, 0.05, patients)[:, 0].double().mean() > 0.95
    few = np.minimum(patients, stacking.FEWEST - 2)
    assert not closes(none + 9, bound, 0.5, few).any()


def test_a_sample_does_not_close_the_gate_for_itself():
    """All that speaks for a candidate is in one sample: only those outside its fold are judged by it."""
    off = np.full((1, 30), 0.001)
    off[0, 4] = 40.0
    found = closes(off, np.array(-1.0), 0.2)[0]
    assert found[0]
    assert found[1:].tolist() == [i % FOLDS != 4 for i in range(30)]


def test_how_little_a_candidate_could_be_ahead_is_by_its_worst_label():
    p = torch.tensor(np.random.default_rng(1).dirichlet(np.ones(4), (1, 2, 3)))  # silos, candidates, samples, classes
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)[None, :, None].expand(1, 2, 3)
    mixed = 0.3 * p[0, 0] + 0.7 * p[0, 1]
    close(stacking.least_ahead(p, 0, weights)[0], (p[0, 0] / mixed).log().amin(1))
    places = torch.stack([p, p.flip(3)], 4)  # sequences of two places
    close(stacking.least_ahead(places, 0, weights), stacking.least_ahead(p, 0, weights))


def test_a_sample_is_judged_by_the_weights_of_other_units():
    ll, prior = made(5, 3, 9)
    units = np.array([0, 1, 0, 2, 2, 1, 0, 3, 2])
    likelihoods, mask, priors = tensors(ll, prior)
    found = stacking.weighed(likelihoods, mask, priors, kappa(3), torch.tensor(units)[None])
    close(found.weights, stacking.weighed(likelihoods, mask, priors, kappa(3)).weights)
    for j, unit in enumerate(units):
        close(found.others[0, :, j], em(ll[:, units != unit], prior, 3)[0])
