"""D-FedAvg: FedAvg without a server. Each silo averages its own model with its neighbours'.

The decentralized baseline of Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS
2021, Section 3.3 and Appendix D.2 with one component: train, then average with the neighbours (`gossip.py`). The mean
that silos agree on is a plain one, not weighted by samples as FedAvg's is: W has to be doubly stochastic. The published
code takes fastest-mixing weights on a graph that it does not redraw when it falls apart, loses every self-weight
(its adjacency matrix has no diagonal) and refuses client sampling; this does none of these.
"""

from dataclasses import dataclass

from torch import Tensor

from coterie.engine.method import Model, Nothing, Predictor, Task
from coterie.engine.task import Weights, begun
from coterie.methods.parts.gossip import EstimateUp, Gossip, NeighboursDown, averaged


@dataclass(frozen=True)
class DFedAvg(Gossip[Nothing, Weights]):
    """Each silo its own estimate of one common model."""

    paper = "the baseline of Marfoq et al., NeurIPS 2021"
    summary = "FedAvg without a server: each silo averages its model with its neighbours'"
    by_gradients = True

    def first(self, seed: int, model: Model) -> Tensor:
        return model.start(seed)

    def begin(self, task: Task, down: NeighboursDown, private: Nothing) -> Weights:
        return begun(task, averaged(down))

    def end(self, task: Task, state: Weights, down: NeighboursDown, private: Nothing) -> tuple[EstimateUp, Nothing]:
        return EstimateUp(w=state.w), private

    def personal(self, task: Task, down: NeighboursDown, private: Nothing) -> Predictor:
        return Predictor(models=averaged(down))

    def adapt(self, task: Task, down: NeighboursDown, private: Nothing | None) -> tuple[None, Nothing]:
        """A newcomer gets the mean of all estimates."""
        return None, Nothing()
