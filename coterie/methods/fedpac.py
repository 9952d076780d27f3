"""FedPAC: silos share a body whose features of a class are drawn together, and each combines the heads that suit it.

Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023.

In a round the head trains for `head_epochs` with the body still, then the body for the study's `local_epochs` with the
head still, on the loss plus λ times the mean square of what parts a sample's features from its class's global centroid.
α_i minimises the paper's bound on silo i's test loss, a variance plus a squared bias, over the simplex: exactly, by
non-negative least squares. As in the published code the square is a mean over features, and statistics are of the body
that was sent, centroids of the trained one. A silo deploys its model as its own training left it; the mean body under
its combination of heads is its cloud model.

Equations were held against the published code (github.com/JianXu95/FedPAC, commit 7cf08f3), whose functions are named
at the lines that do what they do. The paper's own numbers have not been checked.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.engine.method import Batch, Cohort, Method, Model, Roster, Task
from coterie.engine.task import Weights, stepped
from coterie.methods.parts.averaging import Copy, weighted_mean
from coterie.methods.parts.partly import fit_on
from coterie.options import option
from coterie.wire import Down, Predictor, Server, Up, rows, shared


class Collaboration(Server):
    """The mean model, every silo's combination of heads, and the classes' centroids."""

    w: Tensor = shared("the mean of the silos' models", role="model")
    heads: Tensor = rows("the silo's head Σ_j α_ij h_j", "head")
    alpha: Tensor = rows("α_i of the last round it took part in", "m")
    centroids: Tensor = shared("the mean features c_k of each class", "C", "z")
    known: Tensor = shared("1 for a class that has a centroid, else 0", "C")


class PacDown(Down):
    """The mean body under the silo's head, and the centroids."""

    u: Tensor = rows("the mean body with the silo's own combination of heads", role="model")
    centroids: Tensor = shared("the mean features c_k of each class, over silos", "C", "z")
    known: Tensor = shared("1 for a class that has a centroid, else 0", "C")


class PacUp(Up):
    """A silo's model, and what its features are like."""

    w: Tensor = rows(
        "the silo's model after local training", role="model", seen_by="server; its head also others, mixed"
    )
    counts: Tensor = rows("its training samples of each class", "C", seen_by="server")
    centroids: Tensor = rows(
        "mean features of each class, of the trained body", "C", "z", seen_by="server; others, mixed"
    )
    means: Tensor = rows("mean features of each class, of the body it was sent", "C", "z", seen_by="server")
    variance: Tensor = rows("V_i, the variance of its head's estimate", seen_by="server")


class Aligned(Weights):
    """The body in training, towards the centroids."""

    centroids: Tensor = shared("c_k", "C", "z")
    known: Tensor = shared("1 for a class that has a centroid, else 0", "C")


@dataclass(frozen=True)
class FedPAC(Method[Collaboration, PacDown, PacUp, Copy, Aligned]):
    """A shared body with aligned features, and heads combined for each silo."""

    paper = "Xu et al., ICLR 2023"
    summary = "the body is averaged, its features aligned by class; each silo combines the heads that suit it"
    lr_by_row = True

    lam: float = option(1.0, "λ, how strongly features are drawn to their class's centroid", low=0)
    head_epochs: int = option(1, "epochs of the head in a round, before the body's (the study's local_epochs)", low=0)

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if not model.classes:
            return "its centroids are of classes; the labels of these data are numbers"
        if len(model.features_shape) != 1:
            return f"a sample's features before the head are {model.features_shape}; it needs one vector of them"
        if not model.columns("body", empty=True).width:
            return "this model is a head alone and has no body to share; take one with more layers"
        return None

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        return super().axes(roster, model) | {"C": model.classes, "z": model.features_shape[0]}

    # Server

    def open(self, roster: Roster, model: Model) -> Collaboration:
        w, m = model.start(roster.seed), len(roster)
        return Collaboration(
            w=w,
            heads=model.columns("head").take(w).expand(m, -1).clone(),
            alpha=torch.eye(m, dtype=w.dtype, device=w.device),
            centroids=w.new_zeros(model.classes, *model.features_shape),
            known=w.new_zeros(model.classes),
        )

    def send(self, server: Collaboration, cohort: Cohort) -> PacDown:
        u = cohort.model.columns("head").put(server.w.expand(len(cohort), -1), server.heads[cohort.ids])
        return PacDown(u=u, centroids=server.centroids, known=server.known)

    def receive(self, server: Collaboration, cohort: Cohort, up: PacUp) -> Collaboration:
        counts = torch.minimum(up.counts.clamp_min(0), cohort.sizes[:, None])  # a rogue silo may send any number
        alpha = combination(counts, up.means, up.variance).to(up.w)  # (k, k), over those who replied
        heads = alpha @ cohort.model.columns("head").take(up.w)
        known = counts.sum(0)
        # c_k = Σ_i n_ik c_ik / Σ_i n_ik (protos_aggregation)
        mean = torch.einsum("kc,kcz->cz", counts, up.centroids) / known.clamp_min(1)[:, None]
        everyone = torch.zeros_like(server.alpha[cohort.ids]).index_copy(1, cohort.ids, alpha)
        return Collaboration(
            w=weighted_mean(up.w, cohort.sizes),
            heads=server.heads.index_copy(0, cohort.ids, heads),  # a missing silo's last head stands
            alpha=server.alpha.index_copy(0, cohort.ids, everyone),
            centroids=torch.where(known[:, None] > 0, mean, server.centroids),
            known=torch.maximum(server.known, (known > 0).to(server.known)),
        )

    # Silo

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Copy:
        return Copy(w=model.starts(roster.seed, roster.take(rows).names, common=True))

    def begin(self, task: Task, down: PacDown, private: Copy | None) -> Aligned:
        w = fit_on(task, down.u, task.model.columns("head"), "head", self.head_epochs) if self.head_epochs else down.u
        opt = task.optimizer.init(w, only=task.model.columns("body"))
        return Aligned(w=w, centroids=down.centroids, known=down.known, opt=opt)

    def step(self, task: Task, state: Aligned, batch: Batch) -> Aligned:
        def loss(out: Tensor, batch: Batch, features: Tensor | None) -> Tensor:
            assert features is not None
            # ‖z − c_y‖² / dim z (local_training, its loss1)
            apart = (features - state.centroids[batch.y]).square().mean(-1)
            return task.model.sample_losses(out, batch.y) + self.lam * state.known[batch.y] * apart

        g = task.grad(state.w, batch, loss=loss, features=True)
        return stepped(task, state, g, batch, task.model.columns("body"))

    def end(self, task: Task, state: Aligned, down: PacDown, private: Copy) -> tuple[PacUp, Copy]:
        counts, means, squares = by_class(task, down.u)
        centroids = by_class(task, state.w)[1]
        share = counts / counts.sum(1, keepdim=True)
        # V_i = (Σ_k p_k E‖z‖² − Σ_k p_k² ‖μ_k‖²) / n_i (statistics_extraction)
        spread = (share * squares).sum(1) - (share.square() * means.square().sum(2)).sum(1)
        up = PacUp(w=state.w, counts=counts, centroids=centroids, means=means, variance=spread / counts.sum(1))
        return up, Copy(w=state.w)

    def cloud(self, task: Task, down: PacDown, private: Copy) -> Predictor:
        return Predictor(models=down.u)

    def host(self, server: Collaboration, newcomers: Cohort, up: PacUp | None) -> PacDown:
        u = server.w.expand(len(newcomers), -1)
        return PacDown(u=u, centroids=server.centroids, known=server.known)

    def adapt(self, task: Task, down: PacDown, private: Copy | None) -> tuple[None, Copy]:
        """A newcomer trains the mean model, head and body, for one round as the others do."""
        return None, Copy(w=task.run(self.step, self.begin(task, down, None), "arrive").w)

    def trace(self, server: Collaboration, everyone: Cohort, private: Copy | None) -> dict[str, Tensor]:
        return {"collaboration": server.alpha}


def by_class(task: Task, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each silo's training samples by class: how many (k, C), mean features (k, C, z) and mean ‖z‖² (k, C)."""
    z = task.features(w)  # (k, n, z), 0 where a silo has fewer samples than n
    one = z.new_zeros(*z.shape[:2], task.model.classes)
    for row, name in enumerate(task.names):
        labels = torch.from_numpy(task.store.labels("train", name)).to(z.device)
        one[row, torch.arange(len(labels), device=z.device), labels] = 1
    counts = one.sum(1)
    least = counts.clamp_min(1)
    means = torch.einsum("knc,knz->kcz", one, z) / least[..., None]
    return counts, means, torch.einsum("knc,kn->kc", one, z.square().sum(2)) / least


def combination(counts: Tensor, means: Tensor, variance: Tensor) -> Tensor:
    """α (k, k): of each silo argmin over the simplex of Σ_j α_j² V_j + Σ_c ‖h_ic − Σ_j α_j h_jc‖²; h_ic = p_ic μ_ic."""
    # get_head_agg_weight, of what statistics_extraction gives
    share = counts.double() / counts.double().sum(1, keepdim=True).clamp_min(1)
    h = (share[..., None] * means.double()).flatten(1).cpu().numpy()  # (k, C z)
    deviation = variance.double().clamp_min(0).sqrt().cpu().numpy()
    return torch.from_numpy(np.stack([_nearest(own, h, deviation) for own in h]))


def _nearest(own: np.ndarray, h: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """One silo's: least squares of α ≥ 0 with one equation more, Σ α = 1, gives its direction; its length is then 1."""
    bias = np.linalg.qr((own - h).T, mode="r")  # as few rows as silos, the same squares
    scale = max(float(np.abs(bias).max(initial=0.0)), float(deviation.max()), 1e-300)
    rows = np.vstack([np.diag(deviation), bias, np.full((1, len(h)), scale)])
    from scipy.optimize import nnls

    found, _ = nnls(rows / scale, np.append(np.zeros(len(rows) - 1), 1.0), maxiter=100 * len(h))
    found /= found.sum()
    return np.asarray(found)
