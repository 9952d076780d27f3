"""D-FedEM: FedEM without a server. Each silo has its own estimate of every component and averages with its neighbours.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021,
Section 3.3 and Algorithm 4 (Appendix D.2): E-step, π and local training as in FedEM from the silo's own estimates, then
the average with its neighbours (`gossip.py`). That average is a plain one, not weighted by samples: W has to be doubly
stochastic. All silos start from the same components. The published code takes fastest-mixing weights on a graph that it
does not redraw when it falls apart, loses every self-weight (its adjacency matrix has no diagonal) and refuses client
sampling; this does none of these. The rest is as `fedem.py` says.
"""

from dataclasses import dataclass

from torch import Tensor

from coterie.engine.across import all_silos
from coterie.engine.method import Batch, Cohort, Model, Predictor, Roster, Task
from coterie.methods.parts import mixture as em
from coterie.methods.parts.gossip import EstimateUp, Gossip, NeighboursDown, Relay, averaged
from coterie.methods.parts.mixture import Mixture, MixtureWeights
from coterie.options import option
from coterie.wire import bank, rows


class NeighbourComponentsDown(NeighboursDown):
    """The components of a silo's neighbours and its own, and how to average them."""

    uploads: Tensor = bank("the components of its neighbours, each as they are, and its own", "c", picks="picks")


class NeighboursUp(EstimateUp):
    """A silo's estimates of the components after local training."""

    w: Tensor = rows(
        "the silo's components after local training",
        "c",
        role="model",
        seen_by="its neighbours; the hub that relays them",
    )


@dataclass(frozen=True)
class DFedEM(Gossip[MixtureWeights, Mixture]):
    """Components by gossip, private mixture weights."""

    by_columns = True
    paper = "Marfoq et al., NeurIPS 2021"
    summary = "FedEM without a server: each silo averages its components with its neighbours'"
    lr_by_row = True
    one_model = False
    down = NeighbourComponentsDown
    up = NeighboursUp

    components: int = option(3, "M, how many components", low=1)
    adapt_iterations: int = option(1, "E-steps of a silo that arrives after training", low=1)

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        return super().axes(roster, model) | {"c": self.components}

    def first(self, seed: int, model: Model) -> Tensor:
        return em.first_components(seed, model, self.components)

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> MixtureWeights:
        return em.uniform(len(rows), self.components, model)

    def begin(self, task: Task, down: NeighboursDown, private: MixtureWeights) -> Mixture:
        return em.begin(task, averaged(down), private)

    def step(self, task: Task, state: Mixture, batch: Batch) -> Mixture:
        return em.step(task, state, batch)

    def end(
        self, task: Task, state: Mixture, down: NeighboursDown, private: MixtureWeights
    ) -> tuple[NeighboursUp, MixtureWeights]:
        return NeighboursUp(w=state.theta), MixtureWeights(pi=state.pi)

    def personal(self, task: Task, down: NeighboursDown, private: MixtureWeights) -> Predictor:
        return em.mixture(averaged(down), private)

    def adapt(self, task: Task, down: NeighboursDown, private: MixtureWeights | None) -> tuple[None, MixtureWeights]:
        """A newcomer takes the mean of all estimates and finds its weights, as in FedEM."""
        return None, em.weigh(task, averaged(down), self.adapt_iterations)

    def trace(self, server: Relay, everyone: Cohort, private: MixtureWeights | None) -> dict[str, Tensor]:
        found = super().trace(server, everyone, private)
        return found if private is None else {**found, "pi": all_silos(private.pi)}
