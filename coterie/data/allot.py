"""Exact counts and random draws, shared by the splits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.data.silo import Array, Indices, Pool, Share
from coterie.errors import BadInput
from coterie.options import option

Origin = Literal["pool", "train", "both", "none"]
Carve = Callable[[Indices, Array, int, np.random.Generator], tuple[Indices, Indices]]
MOST_SILOS = 1_000_000
MOST_SAMPLES = 1_000_000_000  # of a silo


@dataclass(frozen=True)
class HeldOut:
    """What a silo keeps for validation and test, and how much it trains on at most."""

    test_share: float = option(0.2, "share of a silo's samples held out to test on", above=0, below=1)
    validation: float = option(0.2, "validation samples, as a share of the training samples", low=0, below=1)
    keep: int | None = option(None, "training samples a silo keeps at most (scarce data)", low=1)


@dataclass(frozen=True)
class Split:
    """Who gets which samples, and where the validation samples came from."""

    shares: list[Share]
    validation_from: Origin


def portion(share: float, total: int) -> int:
    """`share` of `total` as a whole number, halves upwards."""
    return int(share * total + 0.5)


def apportion(total: int, weights: Array, rng: np.random.Generator) -> Indices:
    """Whole numbers in the ratio of `weights` that add up to `total`, by largest remainder; ties fall at random."""
    counts = np.zeros(len(weights), np.int64)
    if total == 0:
        return counts
    order = rng.permutation(len(weights))
    exact = total * weights[order] / weights.sum()
    whole = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - whole.sum()]] += 1
    counts[order] = whole
    return counts


def carve(indices: Indices, labels: Array, count: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Draw `count` of `indices` with the class proportions they have; returns the drawn and the rest."""
    shuffled = rng.permutation(indices)
    _, kind, sizes = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    quota = apportion(count, sizes, rng)
    order = np.argsort(kind, kind="stable")
    rank = np.empty(len(kind), np.int64)  # (n,) how many of its class come before a sample
    rank[order] = np.arange(len(kind)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    drawn = rank < quota[kind]
    return np.sort(shuffled[drawn]), np.sort(shuffled[~drawn])


def whole(units: Indices) -> Carve:
    """A `carve` that keeps samples of one unit together, so draws about as many of each class."""

    def drawn(indices: Indices, labels: Array, count: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
        if count == 0 or len(indices) == 0:
            return indices[:0], indices
        _, kind, sizes = np.unique(labels[indices], return_inverse=True, return_counts=True)
        names, unit = np.unique(units[indices], return_inverse=True)
        pairs, counts = np.unique(unit * len(sizes) + kind, return_counts=True)
        unit_of, kind_of = np.divmod(pairs, len(sizes))  # (p,) each: who has `counts` samples of which class
        ends = np.searchsorted(unit_of, np.arange(len(names) + 1))
        lacking = count * sizes / len(indices)  # (classes,)
        # By how much the squared distance from what is wanted grows with a unit: (l - n)² - l² = n (n - 2l).
        nearest = np.bincount(unit_of, counts * (counts - 2 * lacking[kind_of])).argmin()
        chosen = np.zeros(len(names), bool)
        for i in rng.permutation(len(names)):
            kinds, n = kind_of[ends[i] : ends[i + 1]], counts[ends[i] : ends[i + 1]]
            if (n * (n - 2 * lacking[kinds])).sum() < 0:
                lacking[kinds] -= n
                chosen[i] = True
        if not chosen.any() and len(names) > 1:  # all are larger than what is wanted
            chosen[nearest] = True
        return np.sort(indices[chosen[unit]]), np.sort(indices[~chosen[unit]])

    return drawn


def latest(indices: Indices, times: Indices, count: int, leave: int) -> tuple[Indices, Indices]:
    """About `count` samples of the last times and the rest, which has `leave` times or more."""
    moments, sizes = np.unique(times[indices], return_counts=True)
    since = np.cumsum(sizes[::-1])[: max(0, len(moments) - leave)]  # samples from each of the last times on
    if count == 0 or len(since) == 0:
        return indices[:0], indices
    late = times[indices] >= moments[-1 - np.abs(since - count).argmin()]
    return indices[late], indices[~late]


def in_time(times: Indices, options: HeldOut) -> Share:
    """Train on the past, validate on what follows, test on the last; samples of one time stay together."""
    total = len(times)
    test, rest = latest(np.arange(total), times, portion(options.test_share, total), 1 + (options.validation > 0))
    keep = len(rest) if options.keep is None else min(options.keep, len(rest))
    validation, train = latest(rest, times, portion(options.validation, keep), 1)
    newest = train[np.argsort(times[train], kind="stable")][-keep:]
    return Share(np.sort(newest), validation, test)


def labels_of(pool: Pool, split: str) -> Indices:
    """The class of every sample, which every split but `iid` needs."""
    if pool.classes == 0 or pool.y.ndim != 1:
        raise BadInput(f'split {split}: {pool.name} has no class for each sample; use split = "iid"')
    return pool.y


def stock(labels: Indices, classes: int, rng: np.random.Generator) -> list[Indices]:
    """The samples of each class, shuffled."""
    return [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]


def take(piles: list[Indices], counts: Indices) -> Indices:
    """So many samples from the top of each pile, which shrinks."""
    taken = np.concatenate([pile[:n] for pile, n in zip(piles, counts, strict=True)])
    piles[:] = [pile[n:] for pile, n in zip(piles, counts, strict=True)]
    return taken


def held_out(
    holdings: Sequence[Indices],
    labels: Array,
    split: str,
    options: HeldOut,
    rng: np.random.Generator,
    carve: Carve = carve,
) -> Split:
    """Cut each silo's samples into train, validation and test, all with the silo's own class proportions."""
    cuts = []
    for held in holdings:
        test, rest = carve(held, labels, portion(options.test_share, len(held)), rng)
        train, spare = carve(rest, labels, len(rest) if options.keep is None else min(options.keep, len(rest)), rng)
        cuts.append((train, spare, test))
    shares, found = list[Share](), set[Origin]()
    for train, spare, test in cuts:
        count = portion(options.validation, len(train))
        pooled = len(spare) >= count
        validation, left = carve(spare if pooled else train, labels, count, rng)
        shares.append(Share(train if pooled else left, validation, test))
        found |= {origin(options.validation, pooled)} if count else set()
    check_training(shares, split)
    return Split(shares, "both" if len(found) > 1 else found.pop() if found else "none")


def origin(validation: float, pooled: bool) -> Origin:
    """Where validation samples came from."""
    return "none" if validation == 0 else "pool" if pooled else "train"


def check_training(shares: Sequence[Share], split: str) -> None:
    """Refuse a split that leaves a silo with nothing to learn from."""
    for i, share in enumerate(shares):
        if len(share.train) == 0:
            raise BadInput(
                f"split {split}: silo {i} is left with no training samples; "
                "use fewer silos, more data or smaller test and validation shares"
            )
