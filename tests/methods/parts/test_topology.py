"""Graphs and mixing matrices: what gossip needs of them, and the fastest-mixing chains that are known."""

import numpy as np
import pytest

from coterie.errors import BadInput
from coterie.methods.parts.topology import among, connected, fastest, graph, metropolis, mixing_matrix, slowest_mode


def path(m: int) -> np.ndarray:
    linked = np.eye(m, k=1, dtype=bool)
    return linked | linked.T


GRAPHS = {
    "ring": graph("ring", 6, 0.5, 0),
    "two": graph("ring", 2, 0.5, 0),
    "one": graph("complete", 1, 0.5, 0),
    "complete": graph("complete", 5, 0.5, 0),
    "random": graph("erdos-renyi", 12, 0.3, 1),
    "in pieces": graph("time-varying", 9, 0.05, 2, round=4),
    "path": path(7),
}


@pytest.mark.parametrize("weigh", [metropolis, fastest])
@pytest.mark.parametrize("name", GRAPHS)
def test_weights_are_symmetric_doubly_stochastic_and_on_the_edges(weigh, name: str) -> None:
    linked = GRAPHS[name]
    w = weigh(linked)
    np.testing.assert_array_equal(w, w.T)
    np.testing.assert_allclose(w.sum(0), 1, atol=1e-12)
    assert w.min() >= 0
    assert not w[~linked & ~np.eye(len(w), dtype=bool)].any()


@pytest.mark.parametrize("name", GRAPHS)
def test_fastest_is_never_slower_than_metropolis(name: str) -> None:
    assert slowest_mode(fastest(GRAPHS[name])) <= slowest_mode(metropolis(GRAPHS[name])) + 1e-12


def test_fastest_reaches_the_known_optimum_of_a_path() -> None:
    # Boyd, Diaconis, Sun and Xiao, "Fastest Mixing Markov Chain on a Path", 2006: ½ on every edge, λ₂ = cos(π/m)
    for m in (4, 7):
        assert slowest_mode(fastest(path(m))) == pytest.approx(np.cos(np.pi / m), rel=2e-3)
        assert slowest_mode(metropolis(path(m))) > np.cos(np.pi / m) + 0.02


def test_fastest_is_far_better_than_metropolis_on_a_random_graph() -> None:
    linked = graph("erdos-renyi", 20, 0.3, 0)
    # 0.5536 by sequential quadratic programming on the same problem
    assert slowest_mode(fastest(linked)) == pytest.approx(0.5536, rel=5e-3)
    assert slowest_mode(metropolis(linked)) > 0.75


def test_metropolis_keeps_a_self_weight_and_is_uniform_on_the_complete_graph() -> None:
    np.testing.assert_allclose(metropolis(GRAPHS["complete"]), 1 / 5)
    for linked in GRAPHS.values():
        assert metropolis(linked).diagonal().min() > 0


def test_metropolis_by_hand() -> None:
    # a path of three: degrees 1, 2, 1, so both edges weigh 1/(1 + 2)
    np.testing.assert_allclose(metropolis(path(3)), [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]])


def test_a_random_graph_is_drawn_until_it_is_connected() -> None:
    # at p = 0.2 most draws over ten silos fall apart
    assert not all(connected(graph("time-varying", 10, 0.2, 0, round=r)) for r in range(20))
    for seed in range(20):
        assert connected(graph("erdos-renyi", 10, 0.2, seed))
    with pytest.raises(BadInput, match=r"no connected graph of 10 silos .* p = 0\.001"):
        graph("erdos-renyi", 10, 0.001, 0)


def test_a_random_graph_has_about_p_of_the_links() -> None:
    linked = graph("time-varying", 200, 0.3, 0, round=0)
    assert linked[np.triu_indices(200, 1)].mean() == pytest.approx(0.3, abs=0.01)


def test_a_ring_and_a_complete_graph() -> None:
    ring = graph("ring", 5, 0.5, 0)
    assert {(i, j) for i, j in np.argwhere(ring) if i < j} == {(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)}
    assert graph("complete", 4, 0.5, 0).sum() == 12


def test_only_a_time_varying_graph_changes_with_the_round() -> None:
    names = [f"silo-{i}" for i in range(8)]

    def rounds(topology: str) -> list[np.ndarray]:
        return [mixing_matrix(topology, "metropolis", 0.4, names, 1, round=r) for r in range(3)]

    first, second, third = rounds("time-varying")
    assert not np.array_equal(first, second) and not np.array_equal(second, third)
    assert np.array_equal(first, rounds("time-varying")[0])
    for topology in ("erdos-renyi", "ring", "complete"):
        first, second, third = rounds(topology)
        assert np.array_equal(first, second) and np.array_equal(second, third)
    other = mixing_matrix("erdos-renyi", "metropolis", 0.4, names, 2, round=0)
    assert not np.array_equal(other, rounds("erdos-renyi")[0])


@pytest.mark.parametrize("topology", ["erdos-renyi", "ring", "time-varying"])
def test_the_graph_is_over_names_and_not_over_places(topology: str) -> None:
    names = ["silo-10", "delta", "alpha", "silo-2", "echo", "bravo"]
    order = [3, 0, 5, 1, 4, 2]
    w = mixing_matrix(topology, "metropolis", 0.4, names, 7, round=2)
    moved = mixing_matrix(topology, "metropolis", 0.4, [names[i] for i in order], 7, round=2)
    assert np.array_equal(moved, w[np.ix_(order, order)])
    assert len(np.unique(w)) > 1


def test_an_absent_silos_links_are_down_and_its_share_stays_at_home() -> None:
    w = metropolis(path(3))
    np.testing.assert_allclose(among(w, np.array([0, 1])), [[2 / 3, 1 / 3, 0], [1 / 3, 2 / 3, 0], [0, 0, 1]])
    np.testing.assert_allclose(among(w, np.array([0, 2])), np.eye(3))
    np.testing.assert_array_equal(among(w, np.arange(3)), w)
