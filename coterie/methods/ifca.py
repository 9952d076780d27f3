"""IFCA: K models for all; each silo trains the one that does best on its own data, and only that one.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020: the
iterative federated clustering algorithm (Algorithm 1, with its model averaging). The mean of a cluster is weighted by
samples, so that K = 1 is FedAvg; the paper counts silos alike.

Which clusters form depends on where the models start: from a bad start all silos choose one of them. As in the paper,
starts are random and there may be several: `restarts` trains so many sets of K models beside each other, each as in a
run of its own, and silos deploy from the set whose models had the least training loss in the last round. A silo's loss
leaves it only for that. A silo deploys the model of least loss on its training data, never on those it is tested by.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.engine.method import Cohort, Method, Model, Nothing, Roster, Task, spread
from coterie.methods.parts.averaging import weighted_mean
from coterie.options import option
from coterie.wire import Down, Predictor, Record, Server, State, Up, rows, shared


class ClusterModels(Server):
    """The clusters' models, and who chose which."""

    w: Tensor = shared("the clusters' models θ_j; the best restart first", "r", "c", role="model")
    cluster: Tensor = rows("the clusters that the silo last chose (-1: it never replied)", "r")


class ClustersDown(Down):
    """All clusters' models, the same for all."""

    w: Tensor = shared("the clusters' models θ_j; the best restart first", "r", "c", role="model")


class ClusterUp(Up):
    """The model of the cluster that a silo chose, after local training."""

    w: Tensor = rows("the model of its cluster after local training", "r", role="model", seen_by="server")
    cluster: Tensor = rows("which cluster it chose", "r", seen_by="server", below="c")
    loss: Tensor | None = rows(
        "that cluster's training loss, where there are restarts", "r", seen_by="server", default=None
    )


class Chosen(State):
    """The chosen models in training."""

    w: Tensor = rows("the model in training, of each restart", "r", role="model")
    opt: Record
    cluster: Tensor = rows("the cluster that it is of", "r")
    loss: Tensor = rows("its loss before training", "r")


@dataclass(frozen=True)
class IFCA(Method[ClusterModels, ClustersDown, ClusterUp, Nothing, Chosen]):
    """One global model for each of K clusters; silos choose theirs by its loss."""

    paper = "Ghosh et al., NeurIPS 2020"
    summary = "a few global models; each silo trains and deploys the one of least loss on its data"

    clusters: int = option(2, "K, how many clusters", low=1)
    restarts: int = option(1, "sets of K random starts that are trained, of which the best is deployed", low=1)

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        return super().axes(roster, model) | {"r": self.restarts, "c": self.clusters}

    def open(self, roster: Roster, model: Model) -> ClusterModels:
        keys = [("cluster", r, j) if r or j else () for r in range(self.restarts) for j in range(self.clusters)]
        starts = torch.stack([model.start(roster.seed, *key) for key in keys])
        nowhere = torch.full((len(roster), self.restarts), -1, device=starts.device)
        return ClusterModels(w=starts.reshape(self.restarts, self.clusters, -1), cluster=nowhere)

    def send(self, server: ClusterModels, cohort: Cohort) -> ClustersDown:
        return ClustersDown(w=server.w)

    def receive(self, server: ClusterModels, cohort: Cohort, up: ClusterUp) -> ClusterModels:
        w = server.w.clone()
        for r, j in torch.cartesian_prod(torch.arange(self.restarts), torch.arange(self.clusters)).tolist():
            here = up.cluster[:, r] == j
            if bool(here.any()):  # θ_j ← Σ_i s_ij θ_i / Σ_i s_ij, by samples; an empty cluster keeps its model
                w[r, j] = weighted_mean(up.w[here, r], cohort.sizes[here])
        cluster = server.cluster.index_copy(0, cohort.ids, up.cluster.long())
        if up.loss is None:
            return ClusterModels(w=w, cluster=cluster)
        best_first = weighted_mean(up.loss.double(), cohort.sizes).argsort(stable=True)
        return ClusterModels(w=w[best_first], cluster=cluster[:, best_first])

    def begin(self, task: Task, down: ClustersDown, private: Nothing) -> Chosen:
        loss, cluster = _losses(task, down.w).min(2)  # cluster identity estimate: ĵ = argmin_j F_i(θ_j)
        w = down.w[torch.arange(self.restarts, device=cluster.device), cluster]
        return Chosen(w=w, opt=task.optimizer.init(w), cluster=cluster, loss=loss)

    def end(self, task: Task, state: Chosen, down: ClustersDown, private: Nothing) -> tuple[ClusterUp, Nothing]:
        return ClusterUp(w=state.w, cluster=state.cluster, loss=state.loss if self.restarts > 1 else None), private

    def personal(self, task: Task, down: ClustersDown, private: Nothing) -> Predictor:
        return Predictor(models=down.w[0, _losses(task, down.w[:1]).argmin(2)[:, 0]])

    def host(self, server: ClusterModels, newcomers: Cohort, up: ClusterUp | None) -> ClustersDown:
        return ClustersDown(w=server.w)

    def adapt(self, task: Task, down: ClustersDown, private: Nothing | None) -> tuple[None, Nothing]:
        """A newcomer gets all models and deploys the one of least loss on its training data."""
        return None, Nothing()

    def trace(self, server: ClusterModels, everyone: Cohort, private: Nothing | None) -> dict[str, Tensor]:
        cluster = server.cluster[:, 0]
        together = (cluster[:, None] == cluster) & (cluster >= 0)
        together = together | torch.eye(len(cluster), dtype=torch.bool, device=cluster.device)
        return {"cluster": cluster, "collaboration": together / together.sum(1, keepdim=True)}


def _losses(task: Task, models: Tensor) -> Tensor:
    """F_i(θ_j), the mean loss of each model (r, c, d) on each silo's training data: (k, r, c)."""
    # One model after another, each for all silos: never k × r × c models at once.
    each = [task.losses(spread(w, task.k)).sum(1) / task.counts() for w in models.flatten(0, 1)]
    return torch.stack(each, 1).nan_to_num(torch.inf).reshape(task.k, *models.shape[:2])
