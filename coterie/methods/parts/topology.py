"""Who talks to whom where there is no server, and how much each neighbour's word weighs.

A graph is a symmetric matrix of booleans (m, m) without a diagonal; its weights are a symmetric, doubly stochastic
matrix that is zero off the graph's edges. Metropolis weights: Xiao, Boyd and Lall, "A Scheme for Robust Distributed
Sensor Fusion Based on Average Consensus", IPSN 2005. Fastest-mixing weights: Boyd, Diaconis and Xiao, "Fastest Mixing
Markov Chain on a Graph", SIAM Review 2004, by a projected subgradient method instead of a semidefinite solver.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from coterie.errors import BadInput
from coterie.keys import generator

Topology = Literal["erdos-renyi", "ring", "complete", "time-varying"]
LinkWeights = Literal["metropolis", "fastest"]

DRAWS = 1000  # of a random graph, before we say that it will not connect
STEPS = 500  # of the subgradient method: within about 1% of the optimum on random graphs of 10 to 100 silos
PROJECTIONS = 60  # iterations of each projection in it


def mixing_matrix(
    topology: Topology, weights: LinkWeights, p: float, names: Sequence[str], seed: int, round: int
) -> np.ndarray:
    """The mixing matrix (m, m) of a round, in the order of `names`.

    A silo's place in the graph is that of its name among all names, so listing the silos in another order changes
    nothing. Only a time-varying graph depends on the round.
    """
    places = np.argsort(np.argsort(np.array(names, dtype=object)))
    when = round if topology == "time-varying" else None
    return _in_name_order(topology, weights, p, len(names), seed, when)[np.ix_(places, places)]


@lru_cache(maxsize=8)
def _in_name_order(
    topology: Topology, weights: LinkWeights, p: float, m: int, seed: int, round: int | None
) -> np.ndarray:
    linked = graph(topology, m, p, seed, round)
    return metropolis(linked) if weights == "metropolis" else fastest(linked)


def graph(topology: Topology, m: int, p: float, seed: int, round: int | None = None) -> np.ndarray:
    """A graph over m silos.

    Erdős–Rényi: each pair is linked with probability p, drawn again until the graph is connected. Time-varying: drawn
    anew each round, and not again if it falls apart: over τ rounds a pair has met with probability 1 − (1 − p)^τ, so
    that the union of a few rounds is connected, which is what convergence needs (EM's Assumption 8).
    """
    if topology == "complete":
        return ~np.eye(m, dtype=bool)
    if topology == "ring":
        linked = np.roll(np.eye(m, dtype=bool), 1, axis=1)
        return (linked | linked.T) & ~np.eye(m, dtype=bool)
    if topology == "time-varying":
        return _erdos_renyi(m, p, generator(seed, "topology", "round", round))
    for draw in range(DRAWS):
        linked = _erdos_renyi(m, p, generator(seed, "topology", draw))
        if connected(linked):
            return linked
    raise BadInput(
        f"no connected graph of {m} silos in {DRAWS} draws with p = {p:g}; "
        f"random graphs connect above about p = log(m)/m = {np.log(m) / m:.2g}"
    )


def connected(linked: np.ndarray) -> bool:
    """Whether everyone can reach everyone."""
    from scipy.sparse.csgraph import connected_components

    return bool(connected_components(linked, directed=False, return_labels=False) == 1)


def metropolis(linked: np.ndarray) -> np.ndarray:
    """1 / (1 + the larger degree) on every edge; what is left stays with oneself, and is never nothing."""
    degree = linked.sum(1)
    return _with_self(linked / (1 + np.maximum(degree[:, None], degree[None, :])))


def fastest(linked: np.ndarray) -> np.ndarray:
    """The weights, none negative, under which estimates agree fastest: least `slowest_mode`, starting at Metropolis."""
    m = len(linked)
    a, b = np.nonzero(np.triu(linked))  # the two ends of each edge

    def matrix(p: np.ndarray) -> np.ndarray:
        w = np.zeros((m, m))
        w[a, b] = w[b, a] = p
        return _with_self(w)

    p = metropolis(linked)[a, b]
    best, least = p, slowest_mode(matrix(p))
    for k in range(1, STEPS + 1):
        values, vectors = np.linalg.eigh(matrix(p) - 1 / m)
        size = np.abs(values)
        if size.max() < least:
            best, least = p, size.max()
        if least < 1e-12:  # they agree at once: there is nothing to gain
            break
        # A subgradient is −(u_a − u_b)² per edge for an eigenvector u of the largest eigenvalue, the opposite for the
        # smallest; near ties share it, the more sharply the smaller the steps have become.
        share = np.sign(values) * np.exp(20 * np.sqrt(k) * (size - size.max()))
        slope = -((vectors[a] - vectors[b]) ** 2) @ (share / np.abs(share).sum())
        p = _fitting(p - 0.3 / np.sqrt(k) * slope / max(float(np.linalg.norm(slope)), 1e-30), a, b, m)
    return matrix(best)


def _fitting(p: np.ndarray, a: np.ndarray, b: np.ndarray, m: int) -> np.ndarray:
    """The nearest p ≥ 0 whose edges sum to at most 1 at each silo, by the dual problem: a price y for each silo."""

    def load(p: np.ndarray) -> np.ndarray:
        return np.bincount(a, p, m) + np.bincount(b, p, m)

    busiest = load(np.ones_like(p)).max()
    y, near = np.zeros(m), np.maximum(p, 0)
    for _ in range(PROJECTIONS):
        over = load(near) - 1
        if over.max() <= 1e-9:
            break
        y = np.maximum(y + over / (2 * busiest), 0)
        near = np.maximum(p - y[a] - y[b], 0)
    fits = 1 / np.maximum(load(near), 1)
    fitting: np.ndarray = near * np.minimum(fits[a], fits[b])
    return fitting


def slowest_mode(weights: np.ndarray) -> float:
    """The second largest eigenvalue in modulus: what is left of a disagreement after one round, at worst."""
    return float(np.abs(np.linalg.eigvalsh(weights - 1 / len(weights))).max())


def among(weights: np.ndarray, present: np.ndarray) -> np.ndarray:
    """The weights when only some take part: links to the absent are down, and their share stays with oneself.

    Still symmetric and doubly stochastic, so a round without everyone keeps the mean of all estimates too.
    """
    here = np.zeros(len(weights), dtype=bool)
    here[present] = True
    return _with_self(np.where(here[:, None] & here[None, :], weights, 0))


def _erdos_renyi(m: int, p: float, draw: np.random.Generator) -> np.ndarray:
    upper = np.triu(draw.random((m, m)) < p, 1)
    return upper | upper.T


def _with_self(weights: np.ndarray) -> np.ndarray:
    """Each row filled up to 1 by its diagonal."""
    others = np.where(np.eye(len(weights), dtype=bool), 0, weights)
    return others + np.diag(np.maximum(1 - others.sum(1), 0))
