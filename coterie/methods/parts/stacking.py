"""Mixing candidates by held-out data: temperatures, a common prior, each silo's weights by EM, and a gate. In float64.

Shapes: k silos, c candidates, n held-out samples (`mask` is 0 where a silo has fewer), g strengths of the prior.
`units` (k, n), where there are groups: samples of one, such as those of a patient, have one code of 0, 1, 2, …
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.measure.distributions import student_quantile
from coterie.measure.tempering import held_at_one

TEMPERATURES = tuple(2.0 ** (i / 2 - 1) for i in range(9))  # 1/2 … 8, at which silos give their summed log-loss
KAPPAS = (3.0, 10.0, 30.0, 100.0, 300.0, 1e9)  # held-out samples that the prior is worth; the last: as good as all
STEPS = 100  # between two of them
SURER = 2.0  # how strongly a temperature below 1 is held at 1: a mixture is less sure than what it is made of
UNIFORM = 0.02  # the share of the prior that all candidates have alike
ITERATIONS = 100  # of EM, with a prior that is worth something
FOLDS = 10  # parts of a silo's held-out samples, each of which is judged by the weights of the others
FEWEST = 8  # held-out samples, or groups of them, from which on the gate may close
STAKES = tuple(0.99 / 2.0**i for i in range(8))  # of what a bet can lose nothing but all by
LEAST = 1e-30  # probability, as of every log-loss here


@dataclass(frozen=True)
class Weighed:
    """Silos' weights, and what they are worth to each sample when it does not count in them."""

    weights: Tensor  # (k, c)
    left_out: Tensor  # (k, n) log-likelihood of a sample by the weights of other samples
    others: Tensor  # (k, c, n) these weights


def class_likelihoods(p: Tensor, loss: Tensor, temperature: Tensor) -> Tensor:
    """log p(y) of samples at temperatures (t,), from probabilities (k, n, C) and −log p(y) at 1 (k, n): (t, k, n).

    Of sequences (k, n, C, ...) it is the mean over their places, as the loss is: the places of one are no samples of
    their own. By convexity a mixture is at least as good place by place as it is by these means, so the bound holds.
    """
    logs = p.double().nan_to_num(0.0).clamp_min(LEAST).log()
    return torch.stack([-loss.double() / t - _mean(torch.logsumexp(logs / t, 2)) for t in temperature.double()])


def number_likelihoods(loss: Tensor, variance: Tensor) -> Tensor:
    """The log-density of samples of squared errors (k, n) under a Gaussian of this variance."""
    return -0.5 * (math.log(2 * math.pi) + variance.log()) - loss.double() / (2 * variance)


def fitted_temperatures(curves: Tensor) -> Tensor:
    """Of summed log-losses (c, t) at `TEMPERATURES`, where each is lowest, held towards 1: (c,)."""
    from scipy.interpolate import CubicSpline  # which takes long to import

    known = np.log(TEMPERATURES)
    every = np.linspace(known[0], known[-1], STEPS * (len(known) - 1) + 1)
    held = CubicSpline(known, curves.cpu().numpy(), axis=1)(every) + held_at_one(np.exp(every), SURER)
    return curves.new_tensor(np.exp(every[held.argmin(1)]))


def fitted_variances(squares: Tensor, samples: Tensor) -> Tensor:
    """Of summed squared errors (c,) over so many samples, each candidate's variance; one more sample has 1."""
    return (squares + 1) / (samples + 1)


def common_prior(counts: Tensor) -> Tensor:
    """π̄: the candidates' shares of all silos' samples (m, c), with a little for each: (c,)."""
    total, c = counts.sum(0), counts.shape[1]
    share = total / total.sum() if total.sum() > 0 else torch.full_like(total, 1 / c)
    return (1 - UNIFORM) * share + UNIFORM / c


def weigh(likelihoods: Tensor, mask: Tensor, prior: Tensor, kappas: Tensor, iterations: int) -> Tensor:
    """EM from the prior: r_cj ∝ π_c ℓ_cj and π_c ∝ Σ_j r_cj + κ π̄_c: (k, g, c). `kappas` are (g,), or (k, g)."""
    scaled = _scaled(likelihoods, mask)
    kappas = kappas.reshape(-1, kappas.shape[-1], 1)
    total = mask.sum(1)[:, None, None] + kappas
    pi = prior[:, None].expand(-1, kappas.shape[1], -1)
    held = torch.where(total > 0, kappas * pi, pi)  # without samples and a prior it stays as it is
    total = torch.where(total > 0, total, 1.0)
    for _ in range(iterations):
        before, pi = pi, (_counts(scaled, mask, pi) + held) / total
        if torch.equal(pi, before):  # and so it would stay
            break
    return pi


def left_out(likelihoods: Tensor, mask: Tensor, others: Tensor) -> Tensor:
    """log Σ_c π_c^(−j) ℓ_cj, by the weights of the others (k, g, c, n): (k, g, n)."""
    found = (others * _scaled(likelihoods, mask)[:, None]).sum(2).clamp_min(LEAST).log()
    return (found + _top(likelihoods)[:, None]) * mask[:, None]


def others(likelihoods: Tensor, mask: Tensor, prior: Tensor, kappas: Tensor, units: Tensor | None = None) -> Tensor:
    """π^(−j): for each sample the weights that EM finds without it and all else of its fold: (k, g, c, n).

    To take only the sample's own r_cj out of the sums is not enough: what it did to the others' shares would stay.
    """
    fold = _folds(mask, units)
    many = min(FOLDS, mask.shape[1])
    kept = (mask[:, None] * (fold[:, None] != torch.arange(many, device=mask.device)[:, None])).flatten(0, 1)
    often, priors, strengths = (
        each.repeat_interleave(many, 0) for each in (likelihoods, prior, kappas.expand(len(mask), -1))
    )
    pi = weigh(often, kept, priors, strengths, ITERATIONS)
    pi = pi.reshape(len(mask), many, *pi.shape[1:])  # (k, folds, g, c)
    return pi.gather(1, fold[..., None, None].expand(-1, -1, *pi.shape[2:])).permute(0, 2, 3, 1)


def weighed(likelihoods: Tensor, mask: Tensor, prior: Tensor, kappa: Tensor, units: Tensor | None = None) -> Weighed:
    """Silos' weights, and for each sample those that are found without it."""
    weights, worth = bounded(likelihoods, mask, prior, kappa)
    apart = others(likelihoods, mask, prior, worth[:, None], units)
    return Weighed(weights, left_out(likelihoods, mask, apart)[:, 0], apart[:, 0])


def bounded(likelihoods: Tensor, mask: Tensor, prior: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """Weights with a prior that is worth `kappa` samples, or fewer where the bound asks for it, and how many.

    The bound: on the samples it was weighed on, no candidate's mean log-loss is lower by more than (log 1/π̄_c)/n.
    It is held by the first κ of the grid at which it is true. At κ = 0 n iterations suffice: the mean log-likelihood
    after t of them is at most KL(e_c ‖ π̄)/t below that of candidate c (Csiszár and Tusnády, 1984).
    """
    every = prior.new_tensor(KAPPAS).clamp(max=kappa.clamp_min(0))  # all below κ, then κ
    found = weigh(likelihoods, mask, prior, every, ITERATIONS)  # (k, g, c)
    fits = _holds(likelihoods, mask, prior, found)
    none = ~fits.any(1)
    best = torch.where(none, 0, len(KAPPAS) - 1 - fits.flip(1).int().argmax(1))
    weights = found.gather(1, best[:, None, None].expand(-1, 1, found.shape[2]))[:, 0]
    worth = every[best]
    for row in none.nonzero()[:, 0].tolist():
        steps = max(ITERATIONS, int(mask[row].sum()))
        own = slice(row, row + 1)
        weights[row] = weigh(likelihoods[own], mask[own], prior[own], every.new_zeros(1), steps)[0, 0]
        worth[row] = 0
    return weights, worth


def counts(likelihoods: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """The samples that each candidate accounts for, by weights (k, c): (k, c)."""
    return _counts(_scaled(likelihoods, mask), mask, weights[:, None])[:, 0]


def gate(off: Tensor, least: Tensor | None, mask: Tensor, level: float, units: Tensor | None = None) -> Tensor:
    """Whether a candidate beats the mixture, by all samples and, for each, by those outside its fold: (k, 1 + n).

    `off` is by how much it is better in log-likelihood, (k, n); `least` how little that could have been, whatever the
    labels. A unit counts once, by its mean: its samples are alike, and as many draws would close the gate by chance.
    """
    fold = _folds(mask, units)
    known = [None if each is None else _by_unit(each, mask, units) for each in (off, least)]
    closed = _beats(known, _by_unit(torch.ones_like(off), mask, units) > 0, level)[:, None].repeat(1, 1 + off.shape[1])
    for each in range(min(FOLDS, off.shape[1])):
        there = _by_unit(torch.ones_like(off), mask * (fold != each), units) > 0
        closed[:, 1:] = torch.where(fold == each, _beats(known, there, level)[:, None], closed[:, 1:])
    return closed


def least_ahead(p: Tensor, own: int, others: Tensor) -> Tensor:
    """How little candidate `own` could be ahead of the mixture, whatever a sample's label: (k, n).

    From probabilities (k, c, n, C, ...) and the mixture's weights for each sample (k, c, n); of sequences the mean over
    their places.
    """
    mixed = torch.einsum("kcn,kcn...->kn...", others.to(p), p).clamp_min(LEAST).log()
    return _mean((p[:, own].clamp_min(LEAST).log() - mixed).amin(2)).double()


def _beats(known: list[Tensor | None], there: Tensor, level: float) -> Tensor:
    """Whether the mean of what is there is above zero, from units' values (k, n) and the least that each could be.

    Where that is known, by betting: who stakes a share λ of 1 / −min(least) on every unit multiplies a capital of 1 by
    1 + λ off each time, and if the mean is not above zero, the chance that the mean capital over the stakes ever comes
    to 1 / level is at most that (Ville, 1939; Waudby-Smith and Ramdas, 2024). Else by a t-test with two units more,
    both lost by as much as any was won or lost: a candidate that is mostly a little better loses much when it loses.
    """
    off, least = known
    assert off is not None
    enough = there.sum(1) >= FEWEST
    if not enough.any():
        return enough
    if least is not None:
        most = 1 / (-least.where(there, 0.0).amin(1)).clamp_min(1e-6)
        stakes = most[:, None] * off.new_tensor(STAKES)
        gains = torch.log1p((stakes[..., None] * off[:, None]).clamp_min(-1 + 1e-12)) * there[:, None]
        return enough & (torch.logsumexp(gains.sum(2), 1) - math.log(len(STAKES)) >= -math.log(level))
    n = there.sum(1) + 2
    farthest = (off.abs() * there).amax(1)
    mean = ((off * there).sum(1) - 2 * farthest) / n
    spread = (((off * there).square().sum(1) + 2 * farthest.square() - n * mean.square()) / (n - 1)).clamp_min(1e-24)
    sure = off.new_tensor([-student_quantile(level, int(each) - 1) for each in n])
    return enough & (mean * n.sqrt() > sure * spread.sqrt())


def _by_unit(values: Tensor, mask: Tensor, units: Tensor | None) -> Tensor:
    """The mean over each unit's samples, in the place of its code; on the CPU, which adds in one order: (k, n)."""
    if units is None:
        return values * mask
    codes, real = units.cpu(), mask.cpu()
    sums, counts = (torch.zeros_like(real).scatter_add(1, codes, each) for each in (values.cpu() * real, real))
    return (sums / counts.clamp_min(1)).to(values.device)


def _folds(mask: Tensor, units: Tensor | None) -> Tensor:
    """Which part of a silo's held-out samples each is in; those of a unit are in one: (k, n)."""
    return (torch.arange(mask.shape[1], device=mask.device).expand(mask.shape) if units is None else units) % FOLDS


def _mean(each: Tensor) -> Tensor:
    """The mean over a sample's places: (k, n)."""
    return each.flatten(2).mean(2) if each.ndim > 2 else each


def _holds(likelihoods: Tensor, mask: Tensor, prior: Tensor, pi: Tensor) -> Tensor:
    """Whether weights (k, g, c) keep the bound: (k, g)."""
    mixed = torch.einsum("kgc,kcn->kgn", pi, _scaled(likelihoods, mask)).clamp_min(LEAST).log() * mask[:, None]
    each = ((likelihoods - _top(likelihoods)[:, None]) * mask[:, None]).sum(2)
    best = torch.where(prior > 0, each + prior.clamp_min(LEAST).log(), -torch.inf).amax(1)  # (k,)
    return mixed.sum(2) >= best[:, None] - 1e-9


def _counts(scaled: Tensor, mask: Tensor, pi: Tensor) -> Tensor:
    """Σ_j r_cj: (k, g, c)."""
    mixed = torch.matmul(pi, scaled).clamp_min(LEAST)
    return pi * torch.matmul(mask[:, None] / mixed, scaled.mT)


def _scaled(likelihoods: Tensor, mask: Tensor) -> Tensor:
    """Likelihoods of samples, of the best candidate 1."""
    return (likelihoods - _top(likelihoods)[:, None]).exp() * mask[:, None]


def _top(likelihoods: Tensor) -> Tensor:
    return likelihoods.amax(1)
