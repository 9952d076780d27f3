"""pFedGraph: the server infers who should learn from whom, and mixes a model for each silo by that graph.

Ye, Ni, Wu, Chen and Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023. Row i of
the graph is argmin α ‖x − p‖² − Σ_j cos_ij x_j over the simplex: p are the silos' shares of the samples, cos_ij the
cosine of what silos i and j have changed of the common start so far, in trained parameters. It is the projection of
p + cos_i / 2α onto the simplex. A silo then trains from u_i = Σ_j x_j w_j on F_i(w) − λ cos(w, u_i).
The published code adds λ cos(w, u_i), which turns models away from u_i, and counts cosines above 0.9 as 1; this does
neither. The graph is over the silos that have ever replied, each with its last model; one that has not is sent their
mean.

Equations were held against the published code (github.com/MediaBrain-SJTU/pFedGraph, commit 4f5f17c, pytorch/), whose
functions are named at the lines that do what they do. The paper's own numbers have not been checked.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engine.method import Batch, Cohort, Model, Roster, Task
from coterie.engine.task import Weights, stepped
from coterie.methods.parts.attention import cosines
from coterie.methods.parts.message_passing import CloudDown, CloudModels, Models, Personal, PersonalUp
from coterie.methods.parts.simplex import nearest_in_simplex
from coterie.options import option
from coterie.wire import rows


class Collaboration(Models):
    """The last model of every silo, and where they all began."""

    heard: Tensor = rows("whether the silo ever replied")
    sizes: Tensor = rows("its training samples", fixed=True)


class Turned(Weights):
    """Local training that turns towards a model."""

    towards: Tensor = rows("u_i, the model that it turns towards", role="model")


@dataclass(frozen=True)
class PFedGraph(CloudModels[Collaboration, Turned]):
    """Each silo starts from a mixture of the models that changed as its own did, and stays aligned with it."""

    paper = "Ye et al., ICML 2023"
    summary = "each silo trains from a mixture of models, by a graph inferred from how alike they changed"
    lr_by_row = True
    by_gradients = True

    alpha: float = option(0.8, "α, how near a silo's weights stay to the shares of the samples", low=1e-9)
    lam: float = option(0.01, "λ, how strongly a silo's model is kept aligned with its mixture", low=0)

    # Server

    def open(self, roster: Roster, model: Model) -> Collaboration:
        w = model.starts(roster.seed, roster.names, common=True)
        heard = torch.zeros(len(roster), dtype=torch.bool, device=w.device)
        return Collaboration(w=w, heard=heard, sizes=roster.sizes.double(), start=model.start(roster.seed))

    def send(self, server: Collaboration, cohort: Cohort) -> CloudDown:
        graph = self.graph(server, cohort.model)[cohort.ids]
        return CloudDown(u=graph.to(server.w.dtype) @ server.w)  # u_i = Σ_j x_j w_j (aggregation_by_graph)

    def graph(self, server: Collaboration, model: Model) -> Tensor:
        """Every silo's weights on all silos' models: (m, m)."""
        known = server.heard | ~server.heard.any()  # before the first reply all models are one
        alike = cosines(model.layout.weights(server.w - server.start))  # cal_model_cosine_difference
        share = torch.where(known, server.sizes, 0)
        # argmin α ‖x − p‖² − Σ_j cos_ij x_j over the simplex (optimizing_graph_matrix_neighbor, whose λ is this α)
        wanted = share / share.sum() + alike / (2 * self.alpha)
        return nearest_in_simplex(torch.where(known, wanted, -torch.inf))

    def receive(self, server: Collaboration, cohort: Cohort, up: PersonalUp) -> Collaboration:
        w = server.w.index_copy(0, cohort.ids, up.w)  # a missing silo's last model stands in
        return server.replace(w=w, heard=server.heard.index_fill(0, cohort.ids, True))

    # Silo

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Personal:
        return Personal(w=model.starts(roster.seed, roster.take(rows).names, common=True))

    def begin(self, task: Task, down: CloudDown, private: Personal) -> Turned:
        return Turned(w=down.u, towards=down.u, opt=task.optimizer.init(down.u))

    def step(self, task: Task, state: Turned, batch: Batch) -> Turned:
        slope = cosine_slope(state.w, state.towards, task.model.layout.trained)
        gradient = task.grad(state.w, batch) + -self.lam * slope  # of F_i(w) − λ cos(w, u_i)
        return stepped(task, state, gradient, batch)

    def mixture(self, server: Collaboration, newcomers: Cohort, row: int, w: Tensor) -> Tensor:
        grown = server.replace(
            w=torch.cat([server.w, w[None]]),
            heard=torch.cat([server.heard, server.heard.new_ones(1)]),
            sizes=torch.cat([server.sizes, newcomers.sizes[row : row + 1].double()]),
        )
        return self.graph(grown, newcomers.model)[-1].to(w.dtype) @ grown.w

    # What a person wants to know

    def trace(self, server: Collaboration, everyone: Cohort, private: Personal | None) -> dict[str, Tensor]:
        return {"collaboration": self.graph(server, everyone.model)}


def cosine_slope(w: Tensor, u: Tensor, trained: int) -> Tensor:
    """∇_w cos(w, u) = (u/‖u‖ − cos(w, u) w/‖w‖) / ‖w‖ over the trained columns of rows (k, d), 0 in all others."""
    length = w[:, :trained].norm(dim=1, keepdim=True)
    own, other = (F.normalize(each[:, :trained]) for each in (w, u))
    slope = (other - (own * other).sum(1, keepdim=True) * own) / length
    return F.pad(torch.where(length > 0, slope, 0), (0, w.shape[1] - trained))
