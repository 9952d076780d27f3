"""What goes wrong with data: wrong labels (AMP-pre 4.3), too little of them (EM's 10% of EMNIST), other pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.data.allot import portion
from coterie.data.silo import Array, Part, Pool, Silo
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.options import option

NOISE = 0.3  # its deviation, as a share of the range of the pictures' numbers


@dataclass(frozen=True)
class Subsample:
    """How much of a set is used."""

    subsample: float = option(1.0, "share of the set that is used, drawn at random before the split", above=0, high=1)


@dataclass(frozen=True)
class Dirty:
    """Who has wrong labels, and how many."""

    dirty: float = option(0.0, "share of the silos with dirty labels; 0.4: two of every five", low=0, high=1)
    dirty_labels: float = option(0.4, "share of their training labels replaced by another at random", low=0, high=1)


@dataclass(frozen=True)
class Looks:
    """How silos' pictures look: the first silo's like the first, and so on, beginning again after the last."""

    looks: tuple[Literal["plain", "inverted", "noisy", "rotated"], ...] = option(
        (), "how the pictures of the silos look, in turn; none: all plain"
    )


def looking(silos: Sequence[Silo], options: Looks, seed: int) -> list[Silo]:
    """The silos with their pictures, of every split, inverted, with noise, or turned by 90°; alike ones are a group."""
    if not options.looks:
        return list(silos)
    pictures = [part.x for silo in silos for part in (silo.train, silo.validation, silo.test) if len(part)]
    if any(x.ndim != 4 or x.shape[2] != x.shape[3] or x.dtype.kind != "f" for x in pictures):
        raise BadInput("looks: samples are not square pictures of numbers; remove it")
    low, high = min(float(x.min()) for x in pictures), max(float(x.max()) for x in pictures)
    made = []
    for place, silo in enumerate(silos):
        group = place % len(options.looks)
        draw = generator(seed, "looks", silo.name)
        train, validation, test = (
            replace(part, x=_look(part.x, options.looks[group], low, high, draw))
            for part in (silo.train, silo.validation, silo.test)
        )
        made.append(replace(silo, group=group, train=train, validation=validation, test=test))
    return made


def _look(x: Array, look: str, low: float, high: float, draw: np.random.Generator) -> Array:
    if look == "inverted":
        x = low + high - x
    elif look == "noisy":
        x = x + NOISE * (high - low) * draw.normal(size=x.shape)
    elif look == "rotated":
        x = np.rot90(x, axes=(2, 3))
    return np.ascontiguousarray(x, np.float32)


def subsampled(pool: Pool, options: Subsample, seed: int) -> Pool:
    """A uniform draw of the pool, in its order."""
    if options.subsample == 1:
        return pool
    count = portion(options.subsample, len(pool))
    if count == 0:
        raise BadInput(f"subsample = {options.subsample} of {len(pool)} samples leaves none; use more")
    return pool.take(np.sort(generator(seed, "subsample", pool.name).permutation(len(pool))[:count]))


def dirty_silos(count: int, share: float, seed: int) -> list[bool]:
    """Which silos are dirty: evenly spread, so that with 0.4 it is two of any five in a row, from a random start."""
    start = generator(seed, "dirty silos").random()
    steps = np.floor(start + share * np.arange(count + 1))
    return [bool(step) for step in np.diff(steps)]


def dirtied(silos: Sequence[Silo], classes: int, options: Dirty, seed: int) -> list[Silo]:
    """The silos, with the labels of some training samples replaced; validation and test stay as they are."""
    if options.dirty and classes < 2:
        raise BadInput(f"dirty = {options.dirty}: there are {classes} classes, so no label can be wrong; remove it")
    chosen = dirty_silos(len(silos), options.dirty, seed)
    return [
        replace(silo, train=_dirty_part(silo, classes, options, seed)) if is_dirty else silo
        for silo, is_dirty in zip(silos, chosen, strict=True)
    ]


def _dirty_part(silo: Silo, classes: int, options: Dirty, seed: int) -> Part:
    rng = generator(seed, "dirty labels", silo.name)
    wrong = rng.permutation(len(silo.train))[: portion(options.dirty_labels, len(silo.train))]
    y = silo.train.y.copy()
    y[wrong] = (y[wrong] + rng.integers(1, classes, y[wrong].shape)) % classes  # any class but the right one
    return replace(silo.train, y=y)
