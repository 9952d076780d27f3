"""Silos that learn from one another, brought together: an order for a heat map, groups and places for a graph."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

Array = np.ndarray[Any, Any]
MOST_EDGES = 600
ALONE = -1
EVEN = 1.5  # a tie is so many times an even share


def together(weights: Array) -> list[int]:
    """An order of the silos in which those that weigh each other most are neighbours."""
    if len(weights) < 3:
        return list(range(len(weights)))
    share = _between(weights)
    mutual = (share + share.T) / 2
    if np.ptp(mutual[~np.eye(len(mutual), dtype=bool)]) < 1e-9:
        return list(range(len(weights)))
    apart = mutual.max() - mutual
    np.fill_diagonal(apart, 0)
    tree = linkage(squareform(apart, checks=False), "average", optimal_ordering=len(weights) <= 200)
    order = [int(i) for i in leaves_list(tree)]
    return order if order[0] <= order[-1] else order[::-1]


@dataclass(frozen=True)
class Network:
    """Who takes clearly more than an even share from whom."""

    places: Array  # (m, 2)
    groups: list[int]  # a number per silo, or ALONE
    edges: list[tuple[int, int, float]]  # the stronger direction of a pair: taker, giver, weight

    def named_above(self) -> list[bool]:
        """Whether a silo's name has room above it or below: on the side away from its group, where no line runs."""
        height = self.places[:, 1]
        middle = {group: height[np.array(self.groups) == group].mean() for group in set(self.groups)}
        return [group == ALONE or bool(height[i] >= middle[group]) for i, group in enumerate(self.groups)]


def network(weights: Array) -> Network:
    """The strongest ties of a collaboration matrix, and the groups they make, each laid out as a circle of silos."""
    import networkx as nx  # comes with torch

    m = len(weights)
    share = _between(weights)
    strongest = np.maximum(share, share.T)
    ties = [(i, j) for i in range(m) for j in range(i) if strongest[i, j] > EVEN / (m - 1)]
    ties = sorted(ties, key=lambda tie: -strongest[tie])[:MOST_EDGES]
    graph = nx.Graph()
    graph.add_nodes_from(range(m))
    graph.add_weighted_edges_from((i, j, float(strongest[i, j])) for i, j in ties)
    found = nx.community.louvain_communities(graph, seed=0) if ties else [{i} for i in range(m)]
    members = sorted((sorted(group) for group in found), key=lambda group: (-len(group), group[0]))
    groups = [ALONE] * m
    for number, group in enumerate(group for group in members if len(group) > 1):
        for i in group:
            groups[i] = number
    edges = [(i, j, float(share[i, j])) if share[i, j] >= share[j, i] else (j, i, float(share[j, i])) for i, j in ties]
    return Network(_circles(members), groups, edges)


def _circles(groups: list[list[int]]) -> Array:
    """Silos on a circle for each group, and the groups on a circle."""
    radius = np.array([0.0 if len(group) == 1 else 0.5 / np.sin(np.pi / len(group)) for group in groups])
    room = 2 * radius + 1.2  # silos are 1 apart, groups a little more
    around = room.sum() / (2 * np.pi)
    far = 0.0 if len(groups) == 1 else max(around, float(radius[:2].sum() + 1.2) / 2)
    angles = (np.cumsum(room) - room / 2) / room.sum() * 2 * np.pi
    places = np.empty((sum(map(len, groups)), 2))
    for group, angle, each in zip(groups, angles, radius, strict=True):
        for place, silo in enumerate(group):
            turn = angle + 2 * np.pi * place / len(group)
            places[silo] = far * _at(angle) + each * _at(turn)
    return places


def _at(angle: float) -> Array:
    return np.array([np.cos(angle), np.sin(angle)])


def _between(weights: Array) -> Array:
    """Of what each silo takes from others, the share of each."""
    between = np.nan_to_num(np.array(weights, dtype=float)).clip(min=0)
    np.fill_diagonal(between, 0)
    total = between.sum(1, keepdims=True)
    return np.asarray(np.divide(between, total, out=np.zeros_like(between), where=total > 0))
