"""Clustered FL: FedAvg until silos pull in different directions, then a FedAvg of each side, and so on.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under
Privacy Constraints", IEEE TNNLS 2020 (arXiv:1910.01991).

A cluster splits when ‖its mean update‖ < ε1 and max ‖Δw_i‖ > ε2: Euclidean norms of all trained weights, with the mean
weighted by samples, so that a federation that does not split is FedAvg (the published code's mean is unweighted).
`norms="absolute"` is this test. `norms="relative"` spares users the search for ε1 and ε2, which depend on the model,
the learning rate and the epochs: ε2 is a share of the longest update so far, ε1 of the cluster's longest mean update.
`linkage="single"` is the paper's bipartition, the one whose largest similarity across is least; "complete" is that of
its published code, which moreover never splits before round 20 and has no γ_max.
Those who replied decide a split; an absent silo goes to the side that has the update most like its own last one. The
sides are averaged apart from the round of the split on. A silo first heard after a split, and a newcomer, trains the
model of the first split for one round and joins the cluster that moved from there most nearly the same way (the paper:
a walk down the tree of all splits, with a round of training at each).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.engine.method import Cohort, Down, Method, Model, Nothing, Predictor, Roster, Server, Task, Up
from coterie.engine.task import Weights, begun
from coterie.methods.parts.attention import cosines, lengths
from coterie.methods.parts.averaging import weighted_mean
from coterie.options import option
from coterie.wire import rows, shared

# Silos that cancel out from the start never move their cluster, so its longest mean update says nothing: a share of the
# longest update of any silo stands in for one that is shorter.
MOVING = 0.2


class Clusters(Server):
    """The clusters' models, and what the next split is decided by."""

    w: Tensor = shared("the clusters' models", "clusters", role="model")
    peak: Tensor = shared("the norm of each cluster's longest mean update so far", "clusters")
    cluster: Tensor = rows("which cluster is the silo's")
    heard: Tensor = rows("whether the silo has ever replied")
    update: Tensor = rows("the silo's last update", role="change")
    longest: Tensor = shared("the norm of the longest update of any silo so far")
    root: Tensor = shared("the model that first split; until then, the global model", role="model")


class ClusterDown(Down):
    """The model of the silo's cluster."""

    w: Tensor = rows("the model of the silo's cluster", role="model")


class UpdateUp(Up):
    """How local training changed the cluster's model."""

    delta: Tensor = rows("Δw_i, what local training changed of the cluster's model", role="change", seen_by="server")


@dataclass(frozen=True)
class ClusteredFL(Method[Clusters, ClusterDown, UpdateUp, Nothing, Weights]):
    """One global model for each cluster of silos."""

    paper = "Sattler et al., TNNLS 2020"
    summary = "FedAvg that splits the silos in two where their updates pull apart, again and again"
    by_gradients = True

    norms: Literal["relative", "absolute"] = option("relative", "ε1 and ε2 as shares of earlier norms, or as norms")
    eps1: float = option(0.6, "ε1: a cluster may split when its mean update is shorter than this", above=0)
    eps2: float = option(0.5, "ε2: and its longest update is longer than this", low=0)
    gamma: float = option(
        0.7, "γ_max: split only if below √((1 − α_cross)/2), α_cross the largest similarity across", low=0, below=1
    )
    linkage: Literal["single", "complete"] = option("single", "the linkage of which the last merge is the split")
    min_rounds: int = option(5, "rounds before the first split", low=0)
    min_size: int = option(1, "silos that replied which each side must have", low=1)

    def open(self, roster: Roster, model: Model) -> Clusters:
        start, m = model.start(roster.seed), len(roster)
        return Clusters(
            w=start[None],
            peak=start.new_zeros(1, dtype=torch.float64),
            cluster=torch.zeros(m, dtype=torch.int64, device=start.device),
            heard=torch.zeros(m, dtype=torch.bool, device=start.device),
            update=start.new_zeros(m, model.width),
            longest=start.new_zeros((), dtype=torch.float64),
            root=start,
        )

    def send(self, server: Clusters, cohort: Cohort) -> ClusterDown:
        of_cluster = server.w[server.cluster[cohort.ids]]
        return ClusterDown(w=torch.where(server.heard[cohort.ids, None], of_cluster, server.root))

    def receive(self, server: Clusters, cohort: Cohort, up: UpdateUp) -> Clusters:
        update, cluster = server.update.index_copy(0, cohort.ids, up.delta), server.cluster.clone()
        weights, sizes = update[:, : cohort.model.layout.trained], cohort.roster.sizes
        replied = torch.zeros_like(server.heard).index_fill(0, cohort.ids, True)
        heard = server.heard | replied
        if len(server.w) > 1:  # who is first heard now trained the root: its update says where it belongs, no more
            first_heard = replied & ~server.heard
            cluster[first_heard] = self.alike(server, update[first_heard], cohort.model)
            replied = replied & server.heard
        longest = torch.maximum(server.longest, lengths(weights[cohort.ids]).max())
        by_name = torch.tensor(np.argsort(np.array(cohort.roster.names)), device=cluster.device)
        w, peak, before = list(server.w), list(server.peak), cluster.clone()
        for c, model in enumerate(server.w):
            members = by_name[before[by_name] == c]
            here = members[replied[members]]
            if len(here) == 0:
                continue
            step = weighted_mean(update[here], sizes[here])  # Σ_i n_i/n Δw_i
            length = lengths(step[: weights.shape[1]])
            w[c], peak[c] = model + step, torch.maximum(peak[c], length)
            if cohort.round < self.min_rounds or not self.apart(length, lengths(weights[here]).max(), peak[c], longest):
                continue
            leaves = self.leaving(weights[members], replied[members])
            if leaves is None:
                continue
            cluster[members[leaves]] = len(w)
            w, peak = [*w, model], [*peak, length]
            for place, side in ((c, ~leaves), (-1, leaves)):
                ids = members[side & replied[members]]
                step = weighted_mean(update[ids], sizes[ids])
                w[place], peak[place] = model + step, lengths(step[: weights.shape[1]])
        root = server.root if len(w) > 1 else w[0]
        return Clusters(
            w=torch.stack(w),
            peak=torch.stack(peak),
            cluster=cluster,
            heard=heard,
            update=update,
            longest=longest,
            root=root,
        )

    def apart(self, mean: Tensor, most: Tensor, peak: Tensor, longest: Tensor) -> bool:
        """Whether silos still pull while their cluster stands still: ‖Σ_i n_i/n Δw_i‖ < ε1 and max_i ‖Δw_i‖ > ε2."""
        if self.norms == "absolute":
            return bool(mean < self.eps1) and bool(most > self.eps2)
        moving = torch.maximum(peak, MOVING * longest)
        return bool(mean < self.eps1 * moving) and bool(most > self.eps2 * longest)

    def leaving(self, updates: Tensor, replied: Tensor) -> Tensor | None:
        """Which members leave for a new cluster, or None if it should not split."""
        alpha, voting = cosines(updates).cpu().numpy(), replied.cpu().numpy()
        votes = alpha[:, voting]  # similarity of every member to those who replied
        if votes.shape[1] < 2 * self.min_size:
            return None
        side = bipartition(votes[voting], self.linkage)
        cross = votes[voting][side][:, ~side].max()
        # a split is right if every silo's γ_i < √((1 − α_cross)/2); γ_max bounds what the silos' γ_i may be
        if side.sum() < self.min_size or self.gamma >= np.sqrt((1 - cross) / 2):
            return None
        leaves = votes[:, side].max(1) > votes[:, ~side].max(1)
        leaves[voting] = side
        return torch.from_numpy(leaves).to(updates.device)

    def begin(self, task: Task, down: ClusterDown, private: Nothing) -> Weights:
        return begun(task, down.w)

    def end(self, task: Task, state: Weights, down: ClusterDown, private: Nothing) -> tuple[UpdateUp, Nothing]:
        return UpdateUp(delta=state.w - down.w), private  # Δw_i = SGD(w_c) − w_c

    def personal(self, task: Task, down: ClusterDown, private: Nothing) -> Predictor:
        return Predictor(models=down.w)

    def host(self, server: Clusters, newcomers: Cohort, up: UpdateUp | None) -> ClusterDown:
        if up is None:
            return ClusterDown(w=server.root.expand(len(newcomers), -1))
        return ClusterDown(w=server.w[self.alike(server, up.delta, newcomers.model)])

    def alike(self, server: Clusters, updates: Tensor, model: Model) -> Tensor:
        """For updates of the root, the clusters that have moved from there in the most similar direction."""
        weights = model.layout.trained
        went = (server.w - server.root)[:, :weights].double()
        return (updates[:, :weights].double() @ went.T / lengths(went).clamp_min(1e-300)).argmax(1)

    def adapt(self, task: Task, down: ClusterDown, private: Nothing | None) -> tuple[UpdateUp | None, Nothing]:
        """A newcomer trains the model of the first split and is answered with the cluster that went its way."""
        if private is None:
            return UpdateUp(delta=task.fit(down.w, "arrive") - down.w), Nothing()
        return None, private

    def trace(self, server: Clusters, everyone: Cohort, private: Nothing | None) -> dict[str, Tensor]:
        together = (server.cluster[:, None] == server.cluster).double()
        return {"cluster": server.cluster, "collaboration": together / together.sum(1)}


def bipartition(alpha: NDArray[np.float64], method: str) -> NDArray[np.bool_]:
    """Two sides by similarity; True is the smaller one or, of two equal ones, the one without the first member.

    The last merge of single linkage is of the two sides whose largest similarity across is least (the paper's
    Corollary 1 and its algorithm for it).
    """
    from scipy.cluster.hierarchy import linkage, to_tree

    tree = to_tree(linkage(1 - alpha[np.triu_indices(len(alpha), 1)], method))
    side = np.zeros(len(alpha), dtype=bool)
    side[tree.get_left().pre_order()] = True
    larger = 2 * side.sum() > len(side) or (2 * side.sum() == len(side) and side[0])
    return ~side if larger else side
