"""FedEM: a silo's data are a mixture of a few distributions; all share a model of each, and every silo mixes its own.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021
(equations and lines of Algorithm 1 by its numbers).

Which π predicts: Algorithm 1 computes π^k (line 6) from the components θ^{k−1} before it trains them, so what a silo
deploys after round k is θ^k with π^k, that of its last E-step; a silo that was not asked keeps the π it has.
With client sampling the mean is over the silos that replied; the published code averages over all clients, idle ones
with the components they last received. The optimiser starts afresh each round; the published code keeps each client's
momentum between rounds. All components of a silo see the same mini-batches; the published code shuffles for each.
The first component starts from the model that other methods start from (so M = 1 is FedAvg), the rest at random.
"""

from dataclasses import dataclass

from torch import Tensor

from coterie.engine.across import all_silos
from coterie.engine.method import Cohort, Down, Model, Roster, Server, Task, Up
from coterie.methods.parts import mixture as em
from coterie.methods.parts.averaging import weighted_mean
from coterie.methods.parts.mixture import Mixture, MixtureWeights, OfComponents
from coterie.wire import rows, shared


class Components(Server):
    """The components."""

    theta: Tensor = shared("the components θ_1 … θ_M", "c", role="model")


class ComponentsDown(Down):
    """The components, the same for all."""

    theta: Tensor = shared("the components θ_1 … θ_M", "c", role="model")


class ComponentsUp(Up):
    """A silo's components after local training."""

    theta: Tensor = rows("the silo's components after local training", "c", role="model", seen_by="server")


@dataclass(frozen=True)
class FedEM(OfComponents[Components, ComponentsDown, ComponentsUp]):
    """Shared components, private mixture weights."""

    by_columns = True
    paper = "Marfoq et al., NeurIPS 2021"
    summary = "a few shared models, whose predictions each silo mixes with weights of its own"
    averages = True

    def open(self, roster: Roster, model: Model) -> Components:
        return Components(theta=em.first_components(roster.seed, model, self.components))

    def send(self, server: Components, cohort: Cohort) -> ComponentsDown:
        return ComponentsDown(theta=server.theta)  # line 2

    def receive(self, server: Components, cohort: Cohort, up: ComponentsUp) -> Components:
        return Components(theta=weighted_mean(up.theta, cohort.sizes))  # line 10: θ_m ← Σ_t n_t/n θ_{m,t}

    def received(self, task: Task, down: ComponentsDown) -> Tensor:
        return down.theta.expand(task.k, -1, -1)

    def end(
        self, task: Task, state: Mixture, down: ComponentsDown, private: MixtureWeights
    ) -> tuple[ComponentsUp, MixtureWeights]:
        return ComponentsUp(theta=state.theta), MixtureWeights(pi=state.pi)  # line 8; π stays

    def host(self, server: Components, newcomers: Cohort, up: ComponentsUp | None) -> ComponentsDown:
        return ComponentsDown(theta=server.theta)

    def trace(self, server: Components, everyone: Cohort, private: MixtureWeights | None) -> dict[str, Tensor]:
        return {} if private is None else {"pi": all_silos(private.pi)}
