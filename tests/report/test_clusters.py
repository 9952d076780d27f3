"""Silos that learn from one another stand together."""

import numpy as np

from coterie.report.clusters import ALONE, Network, network, together
from coterie.report.collaboration import collaboration, graph

GROUPS = np.array([0, 1, 0, 1, 0, 1])


def blocks():
    """Two groups whose members are interleaved, and a little weight everywhere."""
    weights = np.where(GROUPS[:, None] == GROUPS, 0.3, 0.02)
    np.fill_diagonal(weights, 0.34)
    return weights


def test_an_order_in_which_groups_are_blocks():
    ordered = GROUPS[together(blocks())]
    assert list(ordered) in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


def test_the_heat_map_has_its_rows_columns_and_names_in_that_order():
    names = [f"s{i}" for i in range(6)]
    figure = collaboration(np.stack([np.eye(6), blocks()]), names)
    order = [names.index(name) for name in figure.data[0].x]
    assert list(figure.data[0].x) == list(figure.data[0].y)
    assert np.allclose(figure.data[0].z, blocks()[order][:, order])
    assert np.allclose(figure.data[0].z[:3, 3:], 0.02)


def test_even_weights_keep_their_order():
    assert together(np.full((4, 4), 0.25)) == [0, 1, 2, 3]
    assert together(np.eye(2)) == [0, 1]


def test_ties_are_those_above_an_even_share_and_make_the_groups():
    found = network(blocks())
    assert {frozenset(edge[:2]) for edge in found.edges} == {
        frozenset((i, j)) for i in range(6) for j in range(i) if GROUPS[i] == GROUPS[j]
    }
    assert [group == found.groups[0] for group in found.groups] == [True, False] * 3
    apart = np.linalg.norm(found.places[:, None] - found.places, axis=2)
    same = (GROUPS[:, None] == GROUPS) & ~np.eye(6, dtype=bool)
    assert apart[same].max() < apart[GROUPS[:, None] != GROUPS].min() + 1 and apart[same].min() > 0.5


def test_without_ties_everybody_is_alone():
    assert network(np.eye(3)).groups == [ALONE] * 3
    assert network(np.ones((1, 1))).edges == []


def test_the_graph_says_whom_a_silo_learns_from_and_reads_no_markup():
    figure = graph(np.array([[0.2, 0.8], [0.0, 1.0]]), ["<b>a</b>", "b"])
    first, second = figure.data[-1].customdata
    assert first == "<b>&lt;b&gt;a&lt;/b&gt;</b><br>learns from:<br>b 0.8" and "nobody" in second


def test_a_name_stands_on_the_side_away_from_its_group():
    places = np.array([[0.0, 2.0], [0.0, 0.0], [5.0, -3.0]])
    assert Network(places, [0, 0, ALONE], []).named_above() == [True, False, True]
