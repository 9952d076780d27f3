"""How a data set is shared out among silos: `SPLITS` holds every rule by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.data import allot
from coterie.data.allot import MOST_SILOS, HeldOut, Split
from coterie.data.groups import Groups, groups
from coterie.data.silo import Indices, Pool, Share
from coterie.errors import BadInput
from coterie.options import option

TRIES = 1000


@dataclass(frozen=True)
class Dealt(HeldOut):
    """What a silo is tested on, where samples are dealt to silos."""

    test_share: float | Literal["own"] = option(
        0.2,
        "share of a silo's samples held out to test on; own: the set's own test samples, in each silo's proportions",
        above=0,
        below=1,
    )  # type: ignore[assignment]


@dataclass(frozen=True)
class Iid(Dealt):
    """Options of `iid`."""

    silos: int = option(20, "number of silos", low=1, high=MOST_SILOS)


@dataclass(frozen=True)
class Pathological(Dealt):
    """Options of `pathological`; the defaults are APPLE's twelve silos of two classes."""

    silos: int = option(12, "number of silos", low=1, high=MOST_SILOS)
    classes_per_silo: int = option(2, "classes each silo holds", low=1)
    shares: Literal["equal", "random"] = option(
        "equal", "how the silos of a class divide it: equally, or in proportion to U(0,1) draws as APPLE does"
    )


@dataclass(frozen=True)
class Shards(Dealt):
    """Options of `shards`; the default is APPLE's twelve silos."""

    silos: int = option(
        12, "number of silos; of each class one gets 80%, one 10%, the rest share 10%", low=1, high=MOST_SILOS
    )


@dataclass(frozen=True)
class Dirichlet(Dealt):
    """Options of `dirichlet`."""

    silos: int = option(20, "number of silos", low=1, high=MOST_SILOS)
    alpha: float = option(0.5, "concentration: small is uneven, large is close to iid", above=0)
    min_samples: int = option(10, "samples every silo gets at least; drawn again until it holds", low=1)
    label_groups: int | None = option(
        None, "put the labels in so many random groups and spread the groups (FedEM on CIFAR-10: 3)", low=1
    )


@dataclass(frozen=True)
class Pachinko(HeldOut):
    """Options of `pachinko`, of Reddi et al. (2021); the defaults are FedEM's."""

    silos: int = option(100, "number of silos", low=1, high=MOST_SILOS)
    alpha: float = option(0.4, "concentration over super-classes: small is uneven", above=0)
    beta: float = option(10.0, "concentration over the classes of a super-class", above=0)
    samples: int = option(600, "samples of a silo, with those it tests and validates on", low=1)


@dataclass(frozen=True)
class Natural(HeldOut):
    """Options of `natural`: silos as they are in the world, one for each writer, speaker or site."""

    silos: int | None = option(None, "number of silos, drawn at random (all unless given)", low=1, high=MOST_SILOS)
    min_samples: int = option(10, "samples of a silo at least; who has fewer is left out", low=1)


def iid(pool: Pool, options: Iid, rng: np.random.Generator) -> Split:
    """Every silo a uniform draw of equal size."""
    held = np.array_split(rng.permutation(len(pool)), options.silos)
    return allot.held_out(held, _kinds(pool), "iid", options, rng)


def pathological(pool: Pool, options: Pathological, rng: np.random.Generator) -> Split:
    """Every silo samples of exactly k classes, each class with as many silos as any other, give or take one."""
    labels = allot.labels_of(pool, "pathological")
    present, sizes = np.unique(labels, return_counts=True)
    if options.classes_per_silo > len(present):
        raise BadInput(
            f"split pathological: classes_per_silo = {options.classes_per_silo} "
            f"but {pool.name} has {len(present)} classes; use fewer"
        )
    holds = np.zeros((options.silos, len(present)), bool)
    for silo in range(options.silos):
        rarest_first = np.lexsort((rng.random(len(present)), holds.sum(axis=0)))
        holds[silo, rarest_first[: options.classes_per_silo]] = True
    counts = np.zeros((options.silos, pool.classes), np.int64)
    for label, size, owners in zip(present, sizes, map(np.flatnonzero, holds.T), strict=True):
        if size < len(owners):
            raise BadInput(
                f"split pathological: class {label} needs {len(owners)} samples, one for each of its silos, "
                f"but {len(owners) - size} are missing; use fewer silos"
            )
        weights = rng.random(len(owners)) if options.shares == "random" else np.ones(len(owners))
        # One sample each first, so that a silo with a tiny share still holds the class.
        counts[owners, label] = 1 + allot.apportion(size - len(owners), weights, rng) if len(owners) else 0
    return allot.held_out(_take(counts, labels, rng), labels, "pathological", options, rng)


def shards(pool: Pool, options: Shards, rng: np.random.Generator) -> Split:
    """Each class cut in shards of 80%, 10% and equal parts of 10%, dealt to the silos at random (APPLE)."""
    labels = allot.labels_of(pool, "shards")
    small = options.silos - 2
    weights = np.array([80.0, 10.0, *[10.0 / max(small, 1)] * small][: options.silos])
    counts = np.stack(
        [
            rng.permutation(allot.apportion(size, weights, rng))
            for size in np.bincount(labels, minlength=pool.classes).tolist()
        ],
        axis=1,
    )
    return allot.held_out(_take(counts, labels, rng), labels, "shards", options, rng)


def dirichlet(pool: Pool, options: Dirichlet, rng: np.random.Generator) -> Split:
    """Each class, or each group of classes, spread over the silos by a draw from Dir(alpha)."""
    labels = allot.labels_of(pool, "dirichlet")
    kinds, count = labels, pool.classes
    if options.label_groups is not None:
        count = options.label_groups
        if count > pool.classes:
            raise BadInput(f"split dirichlet: {pool.classes} classes cannot make {count} label_groups; use fewer")
        group_of = np.empty(pool.classes, np.int64)
        for group, members in enumerate(np.array_split(rng.permutation(pool.classes), count)):
            group_of[members] = group
        kinds = group_of[labels]
    sizes = np.bincount(kinds, minlength=count).tolist()
    concentration = np.full(options.silos, options.alpha)
    missing = options.silos * options.min_samples - len(pool)
    if missing > 0:
        raise BadInput(
            f"split dirichlet: {options.silos} silos of {options.min_samples} samples or more need {missing} more "
            f"than the {len(pool)} of {pool.name}; use fewer silos or a smaller min_samples"
        )
    best = 0
    for _ in range(TRIES):
        counts = np.stack([allot.apportion(size, rng.dirichlet(concentration), rng) for size in sizes], axis=1)
        poorest = int(counts.sum(axis=1).min())
        if poorest >= options.min_samples:
            return allot.held_out(_take(counts, kinds, rng), labels, "dirichlet", options, rng)
        best = max(best, poorest)
    raise BadInput(
        f"split dirichlet: {TRIES} draws never gave each of {options.silos} silos {options.min_samples} samples "
        f"(the best left one with {best}); use fewer silos, a larger alpha or a smaller min_samples"
    )


def pachinko(pool: Pool, options: Pachinko, rng: np.random.Generator) -> Split:
    """Every silo draws super-classes by its own Dir(alpha), and of each of them classes by its own Dir(beta)."""
    labels = allot.labels_of(pool, "pachinko")
    if pool.coarse is None:
        raise BadInput(f'split pachinko: {pool.name} has no super-classes; use split = "dirichlet"')
    missing = options.silos * options.samples - len(pool)
    if missing > 0:
        raise BadInput(
            f"split pachinko: {options.silos} silos of {options.samples} samples need {missing} more than the "
            f"{len(pool)} of {pool.name}; use fewer silos or samples"
        )
    cells, kind = np.unique(np.stack([pool.coarse, labels]), axis=1, return_inverse=True)  # (2, cells), (N,)
    parents = np.unique(cells[0], return_inverse=True)[1]
    piles = allot.stock(kind, cells.shape[1], rng)
    held = []
    for _ in range(options.silos):
        left = np.array([len(pile) for pile in piles])
        held.append(allot.take(piles, _draw(left, parents, options, rng)))
    return allot.held_out(held, labels, "pachinko", options, rng)


def natural(pool: Pool, options: Natural, rng: np.random.Generator) -> Split:
    """Every silo the samples of one owner; where they overlap, cut in time: first train, then validation, then test."""
    if pool.owner is None:
        raise BadInput(f'split natural: {pool.name} has no owner for each sample; use split = "iid" or "dirichlet"')
    _, owner, sizes = np.unique(pool.owner, return_inverse=True, return_counts=True)
    enough = np.flatnonzero(sizes >= options.min_samples)
    wanted = len(enough) if options.silos is None else options.silos
    if wanted > len(enough) or wanted == 0:
        raise BadInput(
            f"split natural: {len(enough)} of the {len(sizes)} owners in {pool.name} have {options.min_samples} "
            f"samples or more, {max(wanted, 1)} are asked for; use fewer silos or a smaller min_samples"
        )
    chosen = np.sort(rng.permutation(enough)[:wanted])
    order = np.argsort(owner, kind="stable")  # an owner's samples stay in the order of the pool
    held = np.split(order, np.cumsum(sizes)[:-1])
    holdings = [held[i] for i in chosen.tolist()]
    if pool.overlap:
        return _in_time(holdings, pool.overlap, options)
    return allot.held_out(holdings, _kinds(pool), "natural", options, rng)


Rule = Callable[[Pool, Any, np.random.Generator], Split]

SPLITS: dict[str, tuple[type[Any], Rule]] = {
    "iid": (Iid, iid),
    "pathological": (Pathological, pathological),
    "groups": (Groups, groups),
    "shards": (Shards, shards),
    "dirichlet": (Dirichlet, dirichlet),
    "pachinko": (Pachinko, pachinko),
    "natural": (Natural, natural),
}


def split(pool: Pool, options: Any, rng: np.random.Generator) -> Split:
    """Share out the pool by the rule these options belong to."""
    if pool.overlap and not isinstance(options, Natural):
        raise BadInput(
            f"split: samples of {pool.name} that follow one another have content in common, which a random split would "
            'test on after training on it; use split = "natural", or a stride above the window'
        )
    name, rule = next((name, rule) for name, (schema, rule) in SPLITS.items() if schema is type(options))
    if (options.silos or 1) > len(pool):  # known before a million of them are made
        raise BadInput(f"split {name}: silo {len(pool)} is left with no training samples; use fewer silos or more data")
    if isinstance(options, Dealt) and options.test_share == "own":
        return _with_own_tests(pool, rule, options, rng)
    return rule(pool, options, rng)


def _with_own_tests(pool: Pool, rule: Rule, options: Any, rng: np.random.Generator) -> Split:
    """The set's training samples by the rule, its test samples class by class in the proportions of these."""
    if pool.test is None:
        raise BadInput(f"split: {pool.name} has no test samples of its own; give test_share as a number")
    train, test = np.flatnonzero(~pool.test), np.flatnonzero(pool.test)
    dealt = rule(pool.take(train), replace(options, test_share=0.0), rng)
    held = [train[np.concatenate([share.train, share.validation])] for share in dealt.shares]
    kinds = _kinds(pool)
    classes = int(kinds.max()) + 1
    weights = np.stack([np.bincount(kinds[own], minlength=classes) for own in held])
    counts = np.stack(
        [
            allot.apportion(int(total) if column.any() else 0, column, rng)
            for total, column in zip(np.bincount(kinds[test], minlength=classes), weights.T, strict=True)
        ],
        axis=1,
    )
    tests = _take(counts, kinds[test], rng)
    shares = [
        replace(share, train=train[share.train], validation=train[share.validation], test=np.sort(test[own]))
        for share, own in zip(dealt.shares, tests, strict=True)
    ]
    return replace(dealt, shares=shares)


def _kinds(pool: Pool) -> Indices:
    """The class of every sample; 0 where it has none, or one for each place of a sequence."""
    return pool.y if pool.classes and pool.y.ndim == 1 else np.zeros(len(pool), np.int64)


def _take(counts: Indices, labels: Indices, rng: np.random.Generator) -> list[Indices]:
    """Each silo's samples, given how many of each class it gets: counts (silos, classes)."""
    piles = allot.stock(labels, counts.shape[1], rng)
    pieces = [np.split(pile, np.cumsum(column))[:-1] for pile, column in zip(piles, counts.T, strict=True)]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]


def _draw(left: Indices, parents: Indices, options: Pachinko, rng: np.random.Generator) -> Indices:
    """How many samples of each class one silo gets: of those that are exhausted none, their weights renormalised."""
    families = [np.flatnonzero(parents == parent) for parent in range(parents.max() + 1)]
    coarse = rng.dirichlet(np.full(len(families), options.alpha))
    fine = [rng.dirichlet(np.full(len(family), options.beta)) for family in families]
    counts = np.zeros(len(left), np.int64)
    while (wanted := options.samples - counts.sum()) > 0:
        open_to = np.array([bool((left[family] > counts[family]).any()) for family in families])
        for family, weights, n in zip(families, fine, rng.multinomial(wanted, _of(coarse, open_to)), strict=True):
            # A draw of an exhausted class is drawn again within its super-class, until that is exhausted as well.
            while n > 0 and (left[family] > counts[family]).any():
                free = left[family] - counts[family]
                drawn = np.minimum(rng.multinomial(n, _of(weights, free > 0)), free)
                counts[family] += drawn
                n -= drawn.sum()
    return counts


def _of(weights: NDArray[np.float64], possible: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Weights renormalised over what is possible; even ones where those that are left have all but vanished."""
    kept = np.where(possible, weights, 0.0)
    kept = kept if kept.sum() > 1e-300 else possible.astype(np.float64)
    return np.asarray(kept / kept.sum())


def _in_time(holdings: list[Indices], overlap: int, options: Natural) -> Split:
    """Parts that have nothing in common: between two of them, the samples that reach into both are left out."""
    shares = []
    for held in holdings:
        rest, test = _cut(held, allot.portion(options.test_share, len(held)), overlap)
        train, validation = _cut(rest, allot.portion(options.validation, len(rest)), overlap)
        shares.append(Share(train[: options.keep], validation, test))
    allot.check_training(shares, "natural")
    return Split(shares, allot.origin(options.validation, pooled=False))


def _cut(held: Indices, last: int, overlap: int) -> tuple[Indices, Indices]:
    start = len(held) - last
    return held[: max(start - overlap, 0)] if last else held, held[start:]
