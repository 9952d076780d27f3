"""Silos as they are in the world: one for each writer, speaker or site of a data set."""

from dataclasses import dataclass

import numpy as np

from coterie.data.allot import MOST_SILOS, HeldOut, Split, check_training, held_out, origin, portion
from coterie.data.silo import Indices, Pool, Share
from coterie.errors import BadInput
from coterie.options import option


@dataclass(frozen=True)
class Natural(HeldOut):
    """Options of `natural`."""

    silos: int | None = option(None, "number of silos, drawn at random (all unless given)", low=1, high=MOST_SILOS)
    min_samples: int = option(10, "samples of a silo at least; who has fewer is left out", low=1)


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
    labels = pool.y if pool.classes and pool.y.ndim == 1 else np.zeros(len(pool), np.int64)
    return held_out(holdings, labels, "natural", options, rng)


def _in_time(holdings: list[Indices], overlap: int, options: Natural) -> Split:
    """Parts that have nothing in common: between two of them, the samples that reach into both are left out."""
    shares = []
    for held in holdings:
        rest, test = _cut(held, portion(options.test_share, len(held)), overlap)
        train, validation = _cut(rest, portion(options.validation, len(rest)), overlap)
        shares.append(Share(train[: options.keep], validation, test))
    check_training(shares, "natural")
    return Split(shares, origin(options.validation, pooled=False))


def _cut(held: Indices, last: int, overlap: int) -> tuple[Indices, Indices]:
    start = len(held) - last
    return held[: max(start - overlap, 0)] if last else held, held[start:]
