"""The practical non-IID split of FedAMP: silos in groups, each group dominated by its own classes."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.data import allot
from coterie.data.allot import MOST_SAMPLES, MOST_SILOS, Split
from coterie.data.silo import Indices, Pool, Share
from coterie.errors import BadInput, nearest
from coterie.options import check, option

_PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
_DIGITS_UPPER_LOWER = (tuple(range(10)), tuple(range(10, 36)), tuple(range(36, 62)))
# What a preset stands for: the group-wise splits of the FedAMP papers (AMP-pre §4.1 and C.1).
RECIPES: dict[str, dict[str, Any]] = {
    "amp-mnist": {"members": (20,) * 5, "sizes": (500, 400, 300, 200, 100), "dominating": _PAIRS},
    "amp-fmnist": {"members": (20,) * 5, "sizes": (600, 500, 400, 300, 200), "dominating": _PAIRS},
    "amp-emnist": {"members": (10, 26, 26), "sizes": (1000, 700, 400), "dominating": _DIGITS_UPPER_LOWER},
    "amp-cifar100": {
        "members": (5,) * 20,
        "sizes": (500,) * 4 + (400,) * 4 + (300,) * 4 + (200,) * 4 + (100,) * 4,
        "dominating": "coarse",
    },
}


@dataclass(frozen=True)
class Groups:
    """Options of `groups`; what is not given comes from the preset, or from its neighbours."""

    preset: str | None = option(None, f"a paper's silos, sizes and classes: {', '.join(RECIPES)}")
    silos: int = option(None, "number of silos (20 unless members are given)", low=1, high=MOST_SILOS)
    groups: int = option(
        None, "number of groups (as many as members, dominating or sizes; else 5)", low=1, high=MOST_SILOS
    )
    members: tuple[int, ...] = option(None, "silos in each group (equal groups unless given)", low=1, high=MOST_SILOS)
    sizes: tuple[int, ...] = option(
        None, "training samples of a silo: one number per group, or one for all", low=1, high=MOST_SAMPLES
    )
    dominating: tuple[tuple[int, ...], ...] | Literal["even", "coarse"] = option(
        None, 'classes that dominate each group: a list per group, "even" consecutive blocks, or "coarse" super-classes'
    )
    dominant: float = option(0.8, "share of a silo's samples that is of its dominating classes", low=0, high=1)
    test: int = option(100, "test samples of a silo", low=1, high=MOST_SAMPLES)
    validation: float = option(0.2, "validation samples, as a share of the training samples", low=0, below=1)
    keep: int | None = option(None, "training samples a silo keeps at most (scarce data)", low=1)

    def __post_init__(self) -> None:
        try:
            check(self)  # before a number out of range is built upon
        except BadInput as error:
            raise ValueError(str(error)) from None
        values = _from_neighbours(self) if self.preset is None else _from_preset(self)
        for name, value in values.items():
            object.__setattr__(self, name, value)


def groups(pool: Pool, options: Groups, rng: np.random.Generator) -> Split:
    """80% of a silo's samples spread evenly over its group's classes, 20% evenly over the others."""
    labels = allot.labels_of(pool, "groups")
    dominates = np.stack([np.isin(np.arange(pool.classes), block) for block in _blocks(pool, options)])
    group_of = np.repeat(np.arange(options.groups), options.members)
    sizes = [min(options.sizes[g], options.keep or options.sizes[g]) for g in group_of]

    def draw(totals: list[int]) -> Indices:
        """How many of each class each silo gets: (silos, classes)."""
        return np.stack(
            [_by_class(n, dominates[g], options.dominant, rng) for n, g in zip(totals, group_of, strict=True)]
        )

    train, test = draw(sizes), draw([options.test] * len(sizes))
    validation = draw([allot.portion(options.validation, n) for n in sizes])
    piles = allot.stock(labels, pool.classes, rng)
    held = np.array([len(pile) for pile in piles])
    _check_supply((train + test).sum(axis=0), held, pool)
    pooled = bool((held >= (train + test + validation).sum(axis=0)).all())

    trains, tests = ([np.sort(allot.take(piles, row)) for row in counts] for counts in (train, test))
    if pooled:
        validations = [np.sort(allot.take(piles, row)) for row in validation]
    else:
        cuts = [allot.carve(own, labels, allot.portion(options.validation, len(own)), rng) for own in trains]
        validations, trains = [cut for cut, _ in cuts], [left for _, left in cuts]
    shares = [Share(*own) for own in zip(trains, validations, tests, group_of.tolist(), strict=True)]
    allot.check_training(shares, "groups")
    return Split(shares, allot.origin(options.validation, pooled))


def _from_preset(o: Groups) -> dict[str, Any]:
    if o.preset not in RECIPES:
        raise ValueError(f"unknown preset '{o.preset}'; {nearest(str(o.preset), RECIPES)}")
    values = RECIPES[o.preset]
    values = values | {"silos": sum(values["members"]), "groups": len(values["members"])}
    for name, value in values.items():
        # The same value is let through: a study is re-run from a table with preset and values both written out.
        if getattr(o, name) not in (None, value):
            raise ValueError(f'{name} is already set by preset = "{o.preset}"; give one of the two')
    return values


def _from_neighbours(o: Groups) -> dict[str, Any]:
    dominating = "even" if o.dominating is None else o.dominating
    lists = [v for v in (o.members, o.dominating, o.sizes) if isinstance(v, tuple) and len(v) > 1]
    count = o.groups or (len(lists[0]) if lists else 5)
    for name, value in (("members", o.members), ("dominating", o.dominating), ("sizes", o.sizes)):
        if isinstance(value, tuple) and len(value) != count and not (name == "sizes" and len(value) == 1):
            raise ValueError(f"{name} lists {len(value)} but there are {count} groups; give one per group")
    if o.sizes is None:
        raise ValueError("sizes is missing; give the training samples of a silo, one per group or one for all")
    silos = sum(o.members) if o.members else o.silos or 20
    if o.silos not in (None, silos):
        raise ValueError(f"silos = {o.silos} but members add up to {silos}; give one of the two")
    if silos < count:
        raise ValueError(f"{silos} silos cannot fill {count} groups; use more silos or fewer groups")
    members = o.members or tuple(silos // count + (g < silos % count) for g in range(count))
    sizes = o.sizes if len(o.sizes) > 1 else o.sizes * count
    return {"members": members, "silos": silos, "groups": count, "sizes": sizes, "dominating": dominating}


def _blocks(pool: Pool, o: Groups) -> list[Indices]:
    """The dominating classes of each group."""
    if o.dominating == "even":
        if o.groups > pool.classes:
            raise BadInput(f"split groups: {pool.classes} classes cannot make {o.groups} groups; use fewer groups")
        return np.array_split(np.arange(pool.classes), o.groups)
    if o.dominating == "coarse":
        if pool.coarse is None:
            raise BadInput(f'split groups: {pool.name} has no super-classes; use dominating = "even" or lists')
        kinds = np.unique(pool.coarse)
        if len(kinds) < o.groups:
            raise BadInput(f"split groups: {len(kinds)} super-classes cannot make {o.groups} groups; use fewer groups")
        return [np.unique(pool.y[pool.coarse == kind]) for kind in kinds[: o.groups]]
    for g, block in enumerate(o.dominating):
        if not block or len({*block}) < len(block) or max(block) >= pool.classes:
            raise BadInput(
                f"split groups: dominating[{g}] = {list(block)} is not a list of different classes "
                f"of {pool.name}, 0 to {pool.classes - 1}; correct it"
            )
    return [np.array(block) for block in o.dominating]


def _by_class(total: int, dominates: NDArray[np.bool_], dominant: float, rng: np.random.Generator) -> Indices:
    """How many samples of each class a silo of this many gets."""
    main = total if dominates.all() else allot.portion(dominant, total)
    return allot.apportion(main, dominates, rng) + allot.apportion(total - main, ~dominates, rng)


def _check_supply(needed: Indices, held: Indices, pool: Pool) -> None:
    short = needed - held
    if (short > 0).any():
        worst = int(short.argmax())
        raise BadInput(
            f"split groups: class {worst} of {pool.name} needs {needed[worst]} samples for train and test "
            f"but {short[worst]} are missing; use fewer silos or smaller sizes"
        )
