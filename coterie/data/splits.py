"""How a data set is shared out among silos: `SPLITS` holds every rule by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from coterie.data.allot import MOST_SILOS, HeldOut, Split, apportion, held_out, labels_of, stock
from coterie.data.groups import Groups, groups
from coterie.data.natural import Natural, natural
from coterie.data.pachinko import Pachinko, pachinko
from coterie.data.silo import Indices, Pool
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


def iid(pool: Pool, options: Iid, rng: np.random.Generator) -> Split:
    """Every silo a uniform draw of equal size."""
    labels = pool.y if pool.classes and pool.y.ndim == 1 else np.zeros(len(pool), np.int64)
    held = np.array_split(rng.permutation(len(pool)), options.silos)
    return held_out(held, labels, "iid", options, rng)


def pathological(pool: Pool, options: Pathological, rng: np.random.Generator) -> Split:
    """Every silo samples of exactly k classes, each class with as many silos as any other, give or take one."""
    labels = labels_of(pool, "pathological")
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
        counts[owners, label] = 1 + apportion(size - len(owners), weights, rng) if len(owners) else 0
    return held_out(_take(counts, labels, rng), labels, "pathological", options, rng)


def shards(pool: Pool, options: Shards, rng: np.random.Generator) -> Split:
    """Each class cut in shards of 80%, 10% and equal parts of 10%, dealt to the silos at random (APPLE)."""
    labels = labels_of(pool, "shards")
    small = options.silos - 2
    weights = np.array([80.0, 10.0, *[10.0 / max(small, 1)] * small][: options.silos])
    counts = np.stack(
        [
            rng.permutation(apportion(size, weights, rng))
            for size in np.bincount(labels, minlength=pool.classes).tolist()
        ],
        axis=1,
    )
    return held_out(_take(counts, labels, rng), labels, "shards", options, rng)


def dirichlet(pool: Pool, options: Dirichlet, rng: np.random.Generator) -> Split:
    """Each class, or each group of classes, spread over the silos by a draw from Dir(alpha)."""
    labels = labels_of(pool, "dirichlet")
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
        counts = np.stack([apportion(size, rng.dirichlet(concentration), rng) for size in sizes], axis=1)
        poorest = int(counts.sum(axis=1).min())
        if poorest >= options.min_samples:
            return held_out(_take(counts, kinds, rng), labels, "dirichlet", options, rng)
        best = max(best, poorest)
    raise BadInput(
        f"split dirichlet: {TRIES} draws never gave each of {options.silos} silos {options.min_samples} samples "
        f"(the best left one with {best}); use fewer silos, a larger alpha or a smaller min_samples"
    )


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
    kinds = pool.y if pool.classes and pool.y.ndim == 1 else np.zeros(len(pool), np.int64)
    classes = int(kinds.max()) + 1
    weights = np.stack([np.bincount(kinds[own], minlength=classes) for own in held])
    counts = np.stack(
        [
            apportion(int(total) if column.any() else 0, column, rng)
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


def _take(counts: Indices, labels: Indices, rng: np.random.Generator) -> list[Indices]:
    """Each silo's samples, given how many of each class it gets: counts (silos, classes)."""
    piles = stock(labels, counts.shape[1], rng)
    pieces = [np.split(pile, np.cumsum(column))[:-1] for pile, column in zip(piles, counts.T, strict=True)]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]
