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
from coterie.engine.method import Cohort, Model, Task
from coterie.methods.parts import mixture as em
from coterie.methods.parts.gossip import EstimateUp, Gossip, NeighboursDown, Relay, averaged
from coterie.methods.parts.mixture import Mixture, MixtureWeights, OfComponents
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
class DFedEM(OfComponents[Relay, NeighboursDown, EstimateUp], Gossip[MixtureWeights, Mixture]):
    """Components by gossip, private mixture weights."""

    by_columns = True
    paper = "Marfoq et al., NeurIPS 2021"
    summary = "FedEM without a server: each silo averages its components with its neighbours'"
    down = NeighbourComponentsDown
    up = NeighboursUp

    def first(self, seed: int, model: Model) -> Tensor:
        return em.first_components(seed, model, self.components)

    def received(self, task: Task, down: NeighboursDown) -> Tensor:
        return averaged(down)

    def end(
        self, task: Task, state: Mixture, down: NeighboursDown, private: MixtureWeights
    ) -> tuple[NeighboursUp, MixtureWeights]:
        return NeighboursUp(w=state.theta), MixtureWeights(pi=state.pi)

    def trace(self, server: Relay, everyone: Cohort, private: MixtureWeights | None) -> dict[str, Tensor]:
        found = super().trace(server, everyone, private)
        return found if private is None else {**found, "pi": all_silos(private.pi)}
