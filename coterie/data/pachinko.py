"""The two-stage Pachinko allocation of Reddi et al. (2021), as FedEM uses it on CIFAR-100."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.data.allot import MOST_SILOS, HeldOut, Split, held_out, labels_of, stock, take
from coterie.data.silo import Indices, Pool
from coterie.errors import BadInput
from coterie.options import option


@dataclass(frozen=True)
class Pachinko(HeldOut):
    """Options of `pachinko`; the defaults are FedEM's."""

    silos: int = option(100, "number of silos", low=1, high=MOST_SILOS)
    alpha: float = option(0.4, "concentration over super-classes: small is uneven", above=0)
    beta: float = option(10.0, "concentration over the classes of a super-class", above=0)
    samples: int = option(600, "samples of a silo, with those it tests and validates on", low=1)


def pachinko(pool: Pool, options: Pachinko, rng: np.random.Generator) -> Split:
    """Every silo draws super-classes by its own Dir(alpha), and of each of them classes by its own Dir(beta)."""
    labels = labels_of(pool, "pachinko")
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
    piles = stock(kind, cells.shape[1], rng)
    held = []
    for _ in range(options.silos):
        left = np.array([len(pile) for pile in piles])
        held.append(take(piles, _draw(left, parents, options, rng)))
    return held_out(held, labels, "pachinko", options, rng)


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
