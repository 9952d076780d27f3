"""D-FedAvg: gossip on the 3-silo problem, step by step, and what doubly stochastic mixing promises."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import NAMES, Oracle, close

from coterie.conformance import Ground, small_silos, trained
from coterie.engine.method import Cohort, Method, Roster
from coterie.methods.dfedavg import DFedAvg
from coterie.methods.fedavg import FedAvg
from coterie.methods.parts.gossip import EstimateUp, Relay, averaged
from coterie.methods.parts.topology import graph, mixing_matrix, slowest_mode


@conform("dfedavg", {"topology": "ring"}, {"topology": "time-varying", "p": 0.4, "weights": "fastest"})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def path_weights(oracle: Oracle) -> np.ndarray:
    """Metropolis weights of a random graph that happens to be a path, so that someone is nobody's neighbour."""
    linked = graph("erdos-renyi", 3, 0.5, oracle.seed)
    assert linked.sum() == 4
    place = {name: i for i, name in enumerate(sorted(NAMES))}  # the graph goes by names
    w = np.zeros((3, 3))
    for i, a in enumerate(NAMES):
        for j, b in enumerate(NAMES):
            if linked[place[a], place[b]]:
                w[i, j] = 1 / 3  # 1/(1 + max(1, 2)) on both edges
    return w + np.diag(1 - w.sum(1))


COHORTS = [[0, 1, 2], [0, 2], [1, 2], [0, 1, 2]]


def test_rounds_train_first_and_then_average_with_those_who_are_there() -> None:
    oracle = Oracle()
    method = DFedAvg()
    w = path_weights(oracle)
    engine = oracle.engine(method)
    server = method.open(engine.roster, engine.model)
    theta = np.stack([oracle.start()] * 3)
    everyone = torch.arange(3)
    for k, ids in enumerate(COHORTS):
        cohort = Cohort(torch.tensor(ids), k, engine.roster, engine.model)
        up = engine.train(cohort, method.send(server, cohort)).up
        half = np.stack([oracle.descend(i, theta[i], k) if i in ids else theta[i] for i in range(3)])
        close(oracle.vector(up.w), half[ids])
        server = method.receive(server, cohort, up)
        mixing = np.eye(3)
        for i in ids:
            for j in ids:
                if i != j:  # an absent silo's share stays with its neighbours
                    mixing[i, j] = w[i, j]
                    mixing[i, i] -= w[i, j]
        theta = mixing @ half
        all_of_them = Cohort(everyone, k, engine.roster, engine.model)
        down = method.send(server, all_of_them)
        close(oracle.vector(engine.personal(all_of_them, down).models), theta)
        traced = method.trace(server, all_of_them, engine.private())
        close(traced["collaboration"], mixing)
        close(traced["consensus"], np.mean(np.sum((theta - theta.mean(0)) ** 2, axis=1)))
        close(oracle.vector(method.host(server, all_of_them, None).uploads[0]), theta.mean(0))
    assert np.linalg.norm(theta[0] - theta[1]) > 1e-3  # estimates differ, or nothing was shown


def test_a_silo_is_handed_its_neighbours_uploads_and_no_others() -> None:
    oracle = Oracle()
    method = DFedAvg()
    played = oracle.play(method, rounds=1)
    everyone = Cohort(torch.arange(3), 1, played.engine.roster, played.engine.model)
    down = method.send(played.servers[1], everyone)
    w = path_weights(oracle)
    for i in range(3):
        mine = down.one(i)
        neighbours = np.flatnonzero(w[i])
        close(mine.uploads, played.ups[0].w[neighbours])
        close(oracle.vector(averaged(mine))[0], w[i] @ oracle.vector(played.ups[0].w))
        assert down.one_nbytes(i) == mine.nbytes()
    assert {len(down.one(i).uploads) for i in range(3)} == {2, 3}


def gossiped(method: DFedAvg, m: int, rounds: int, absent: int = 0) -> tuple[list[float], np.ndarray, np.ndarray]:
    """Rounds without local steps from different estimates: consensus distances, and the means before and after."""
    names = tuple(f"silo-{i}" for i in range(m))
    roster = Roster(names, torch.full((m,), 5), torch.full((m,), 5), seed=1)
    start = torch.from_numpy(np.random.default_rng(0).normal(size=(m, 4)))
    server = Relay(sent=start, mixing=torch.eye(m, dtype=torch.float64))
    everyone = Cohort.everyone(roster, Ground(method).model(), rounds)
    distances = [float(method.trace(server, everyone, None)["consensus"])]
    for r in range(rounds):
        here = torch.tensor([i for i in range(m) if not absent or (i + r) % absent])
        cohort = replace(everyone, ids=here, round=r)
        server = method.receive(server, cohort, EstimateUp(w=averaged(method.send(server, cohort))))
        distances.append(float(method.trace(server, everyone, None)["consensus"]))
    after = averaged(method.send(server, everyone))
    return distances, start.mean(0).numpy(), after.numpy()


@pytest.mark.parametrize(
    ("options", "absent"),
    [({}, 0), ({"topology": "ring"}, 0), ({"topology": "time-varying", "p": 0.2}, 0), ({"weights": "fastest"}, 3)],
)
def test_estimates_agree_on_the_mean_when_nobody_trains(options: dict[str, object], absent: int) -> None:
    distances, mean, after = gossiped(DFedAvg(**options), 8, 150, absent)
    assert distances[0] > 1
    assert distances[-1] < 1e-9
    assert (np.diff(distances) < 1e-15).all()
    np.testing.assert_allclose(after, np.stack([mean] * 8), atol=1e-4)


def test_estimates_agree_as_fast_as_the_second_eigenvalue_says() -> None:
    names = [f"silo-{i}" for i in range(8)]
    for weights in ("metropolis", "fastest"):
        rate = slowest_mode(mixing_matrix("ring", weights, 0.5, names, 1, 0))
        distances, _, _ = gossiped(DFedAvg(topology="ring", weights=weights), 8, 20)
        for k, distance in enumerate(distances):
            assert distance <= distances[0] * rate ** (2 * k) * (1 + 1e-9) + 1e-12


def test_on_the_complete_graph_with_equal_sizes_it_is_fedavg() -> None:
    silos = small_silos(sizes=(9, 9, 9))
    gossip, average = Ground(DFedAvg(topology="complete"), silos=silos), Ground(FedAvg(), silos=silos)
    _, ours = trained(gossip, gossip.engine())
    _, theirs = trained(average, average.engine())
    close(ours, theirs)


def test_a_graph_that_cannot_connect_is_refused_in_words() -> None:
    engine = Ground(DFedAvg(p=1e-6)).engine()
    reason = DFedAvg(p=1e-6).refusal(engine.roster, engine.model)
    assert reason is not None and "no connected graph of 4 silos" in reason
    assert DFedAvg().refusal(engine.roster, engine.model) is None
