"""D-FedEM against the equations of Marfoq et al., NeurIPS 2021, on a graph in which not everyone is a neighbour."""

from collections.abc import Callable

import numpy as np
import torch
from method_cases import conform
from oracle import Oracle, close
from test_dfedavg import path_weights
from test_fedem import e_step, local_solver, starts

from coterie.conformance import Ground, small_silos, trained
from coterie.engine.method import Cohort, Method
from coterie.methods.dfedavg import DFedAvg
from coterie.methods.dfedem import DFedEM
from coterie.methods.fedem import FedEM


@conform("dfedem", {"topology": "time-varying", "p": 0.4, "components": 2, "adapt_iterations": 2})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def test_rounds_are_the_e_step_local_training_and_the_average_with_neighbours() -> None:
    oracle = Oracle()
    method = DFedEM(components=2)
    w = path_weights(oracle)
    engine = oracle.engine(method)
    server = method.open(engine.roster, engine.model)
    theta, pi = np.stack([starts(oracle, 2)] * 3), np.full((3, 2), 0.5)
    for k, ids in enumerate([[0, 1, 2], [0, 2], [0, 1, 2]]):
        cohort = Cohort(torch.tensor(ids), k, engine.roster, engine.model)
        up = engine.train(cohort, method.send(server, cohort)).up
        half = theta.copy()
        for i in ids:
            q, pi[i] = e_step(oracle, i, theta[i], pi[i])
            half[i] = local_solver(oracle, i, theta[i], q, k)
        close(oracle.vector(up.w), half[ids])
        close(engine.private().pi, pi)
        server = method.receive(server, cohort, up)
        away = [i for i in range(3) if i not in ids]
        mixing = w.copy()
        for i in away:
            mixing[i], mixing[:, i] = 0, 0
        mixing += np.diag(1 - mixing.sum(1))
        theta = np.einsum("ts,scd->tcd", mixing, half)
        everyone = Cohort(torch.arange(3), k, engine.roster, engine.model)
        personal = engine.personal(everyone, method.send(server, everyone))
        close(oracle.vector(personal.models), theta)
        close(personal.weights, pi)
        traced = method.trace(server, everyone, engine.private())
        close(traced["pi"], pi)
        close(traced["collaboration"], mixing)
        close(traced["consensus"], np.mean(np.sum((theta - theta.mean(0)) ** 2, axis=(1, 2))))


def test_a_newcomer_weighs_the_mean_of_all_estimates() -> None:
    oracle = Oracle()
    method = DFedEM(components=2)
    played = oracle.play(method, rounds=2)
    mean = oracle.vector(played.ups[1].w).mean(0)  # mixing keeps the mean
    newcomers = oracle.engine(method)
    down = newcomers.host(played.servers[2], 1)
    close(oracle.vector(down.uploads[0]), mean)
    for i in range(3):
        close(newcomers.private().pi[i], e_step(oracle, i, mean, np.full(2, 0.5))[1])


def test_on_the_complete_graph_with_equal_sizes_it_is_fedem() -> None:
    silos = small_silos(sizes=(9, 9, 9))
    gossip, central = Ground(DFedEM(topology="complete"), silos=silos), Ground(FedEM(), silos=silos)
    _, ours = trained(gossip, gossip.engine())
    _, theirs = trained(central, central.engine())
    close(ours, theirs)


def test_one_component_is_dfedavg() -> None:
    single, average = Ground(DFedEM(components=1)), Ground(DFedAvg())
    _, ours = trained(single, single.engine())
    _, theirs = trained(average, average.engine())
    close(ours, theirs)
