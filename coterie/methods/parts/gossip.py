"""Gossip: there is no server; each silo averages its neighbours' models itself. What D-FedAvg and D-FedEM share.

Every silo t holds its own estimate θ_t. In a round (Algorithm 4 of "Federated Multi-Task Learning under a Mixture of
Distributions") it trains, θ_t^{k−1/2}, sends that to its neighbours, and averages: θ_t^k = Σ_s W_ts θ_s^{k−1/2}, with W
symmetric and doubly stochastic. On an engine shaped like a star the hub relays: silos upload to it, and at the start of
the next exchange each is handed its neighbours' uploads and the weights of its row of W, and does the average.

A silo that does not reply has all its links down for that round: its neighbours keep its share themselves, so W stays
doubly stochastic and the mean of all estimates is what it was; the silo's own estimate waits for it. It missed the
models that made that estimate, so the hub, which saw them, keeps the average for it: the only one it ever does beside
the mean that a newcomer starts from.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.engine.across import total
from coterie.engine.method import Cohort, Down, Method, Model, PrivateT, Roster, Server, StateT, Up
from coterie.errors import BadInput
from coterie.methods.parts.bank import mixture
from coterie.methods.parts.topology import LinkWeights, Topology, among, mixing_matrix
from coterie.options import option
from coterie.wire import bank, rows


class Relay(Server):
    """What the hub holds until it is fetched: every silo's last upload, and who averages what."""

    sent: Tensor = rows("the silo's last upload θ_t^{k−1/2}", "c?", role="model")
    mixing: Tensor = rows("its row of W: the share of each upload in the silo's estimate", "m")


class NeighboursDown(Down):
    """The uploads of a silo's neighbours and its own, and how to average them."""

    uploads: Tensor = bank("the uploads of its neighbours, each as it is, and its own", picks="picks")
    picks: Tensor = rows("which uploads are for this silo", "m", below="n")
    share: Tensor = rows("their shares in its estimate", "m")


class EstimateUp(Up):
    """A silo's estimate after local training."""

    w: Tensor = rows(
        "the silo's estimate after local training", role="model", seen_by="its neighbours; the hub that relays it"
    )


def averaged(down: NeighboursDown) -> Tensor:
    """θ_t^k = Σ_s W_ts θ_s^{k−1/2}: each silo's estimate, of the uploads it was handed."""
    flat = down.uploads.flatten(1)
    return mixture(flat, down.picks, down.share.to(flat.dtype)).reshape(-1, *down.uploads.shape[1:])


@dataclass(frozen=True)
class Gossip(Method[Relay, NeighboursDown, EstimateUp, PrivateT, StateT]):
    """The graph, and the hub that only relays."""

    by_columns = True
    down = NeighboursDown

    topology: Topology = option("erdos-renyi", "who is whose neighbour; time-varying: drawn anew each round")
    p: float = option(0.5, "probability of a link (erdos-renyi, time-varying)", above=0, high=1)
    weights: LinkWeights = option("metropolis", "how the links are weighted; fastest: estimates agree soonest")

    def first(self, seed: int, model: Model) -> Tensor:
        """The model (d,) or models (c, d) that every silo starts from."""
        raise NotImplementedError

    def open(self, roster: Roster, model: Model) -> Relay:
        start = self.first(roster.seed, model)
        everyone = torch.eye(len(roster), dtype=torch.float64, device=start.device)
        return Relay(sent=start.expand(len(roster), *start.shape).clone(), mixing=everyone)

    def send(self, server: Relay, cohort: Cohort) -> NeighboursDown:
        share = server.mixing[cohort.ids]
        everyone = torch.arange(len(server.sent), device=share.device)
        return self.down(uploads=server.sent, picks=torch.where(share > 0, everyone, -1), share=share)

    def receive(self, server: Relay, cohort: Cohort, up: EstimateUp) -> Relay:
        roster, here = cohort.roster, cohort.ids.cpu().numpy()
        w = mixing_matrix(self.topology, self.weights, self.p, roster.names, roster.seed, cohort.round)
        absent = torch.ones(len(roster), dtype=torch.bool, device=up.w.device)
        absent[cohort.ids] = False
        sent = server.sent.index_copy(0, cohort.ids, up.w)
        sent[absent] = _mixed(server.mixing[absent].to(sent.dtype), server.sent)  # the estimate that waits for it
        return Relay(sent=sent, mixing=torch.from_numpy(among(w, here)).to(server.mixing))

    def host(self, server: Relay, newcomers: Cohort, up: EstimateUp | None) -> NeighboursDown:
        one = server.mixing.new_ones(len(newcomers), 1)
        # Doubly stochastic mixing keeps the mean, so the mean of the uploads is the mean of the estimates.
        return self.down(uploads=server.sent.mean(0, keepdim=True), picks=torch.zeros_like(one).long(), share=one)

    def refusal(self, roster: Roster, model: Model) -> str | None:
        try:
            mixing_matrix(self.topology, self.weights, self.p, roster.names, roster.seed, 0)
        except BadInput as error:
            return str(error)
        return None

    def trace(self, server: Relay, everyone: Cohort, private: Any) -> dict[str, Tensor]:
        estimates = _mixed(server.mixing.to(server.sent.dtype), server.sent)
        apart = (estimates - estimates.mean(0)).flatten(1)
        # (1/m) Σ_t ‖θ_t − mean‖²: how far the estimates are from one another
        return {"collaboration": server.mixing, "consensus": total(apart.square().sum(1)).mean()}


def _mixed(share: Tensor, models: Tensor) -> Tensor:
    return torch.einsum("kn,n...->k...", share, models)
