"""Exact counts and random draws, shared by the splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.data.silo import Array, Indices, Pool, Share
from coterie.errors import BadInput
from coterie.options import option

Origin = Literal["pool", "train", "both", "none"]
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
    holdings: Sequence[Indices], labels: Array, split: str, options: HeldOut, rng: np.random.Generator
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
