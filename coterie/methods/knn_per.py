"""kNN-Per: FedAvg's model, and beside it the silo's own samples, whose nearest neighbours have a say.

Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local Memorization", ICML 2022.

A silo predicts λ_i · (the classes of the nearest of its training samples) + (1 − λ_i) · (the global model), both as
probabilities. Distances are of the global model's features before its head, the kernel is exp(−‖z − z'‖² / (σ · dim z))
as in the published code. λ_i and the number of neighbours are chosen on the silo's validation data by the log-loss; a
silo without any takes λ_i = 0.5 and the first number. Nothing of it is sent.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engine.method import Deployable, Model, Nothing, Predictor, Roster, Task, spread
from coterie.engine.neighbours import Neighbours, nearest
from coterie.engine.task import Weights
from coterie.methods.parts.averaging import GlobalDown, OneModel, global_predictor
from coterie.options import option

GRID = tuple(i / 10 for i in range(11))  # λ


@dataclass(frozen=True)
class KNNPer(OneModel[Weights]):
    """FedAvg, and each silo's own samples beside it."""

    by_columns = True
    paper = "Marfoq et al., ICML 2022"
    summary = "FedAvg's global model, mixed with the nearest neighbours among each silo's own samples"
    by_gradients = True
    one_model = False

    neighbours: tuple[int, ...] = option((10, 5, 20), "how many neighbours to choose among on validation data", low=1)
    weight: float | Literal["auto"] = option(
        "auto", "λ_i, the neighbours' share of a prediction; auto: chosen on validation data", low=0, high=1
    )
    scale: float = option(1.0, "σ, the kernel's width", above=0)

    def __post_init__(self) -> None:
        if not self.neighbours:
            raise ValueError("neighbours: give at least one number")

    @property
    def learns_from_validation(self) -> bool:  # type: ignore[override]
        return self.weight == "auto" or len(self.neighbours) > 1

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if not model.classes:
            return "neighbours vote for a class; the labels of these data are numbers"
        if len(model.features_shape) != 1:
            return f"a sample's features before the head are {model.features_shape}; it needs one vector of them"
        return None

    def personal(self, task: Task, down: GlobalDown, private: Nothing) -> Deployable:
        w = spread(down.w, task.k)
        keys, labels = self._remembered(task, w, "train")
        weight, count = self._chosen(task, w, keys, labels)
        scale = torch.full_like(weight, self.scale)
        return Neighbours(models=w, keys=keys, labels=labels, weight=weight, neighbours=count, scale=scale)

    def cloud(self, task: Task, down: GlobalDown, private: Nothing) -> Predictor:
        return global_predictor(task, down)

    def _remembered(self, task: Task, w: Tensor, split: str) -> tuple[Tensor, Tensor]:
        """Features (k, n, z) and classes (k, n) of a split, -1 where a silo has fewer than n, the most that any has."""
        n = task.most(split)
        z = task.features(w, split).flatten(2)
        labels = torch.full((task.k, n), -1, dtype=torch.int64, device=z.device)
        for row, name in enumerate(task.names):
            own = torch.from_numpy(task.store.labels(split, name))
            labels[row, : len(own)] = own.to(z.device)
        return F.pad(z, (0, 0, 0, n - z.shape[1])), labels

    def _chosen(self, task: Task, w: Tensor, keys: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """λ_i (k,) and how many neighbours (k,) have the least log-loss on validation data."""
        grid = w.new_tensor(GRID if self.weight == "auto" else [self.weight])
        counts = torch.tensor(self.neighbours, device=w.device)
        usual = w.new_tensor(0.5 if self.weight == "auto" else self.weight).expand(task.k)
        if not int(task.counts("validation").max()):
            return usual, counts[:1].expand(task.k).clone()
        z, truth = self._remembered(task, w, "validation")
        of_model = F.pad((-task.losses(w, "validation")).exp(), (0, z.shape[1] - int(task.counts("validation").max())))
        losses = []
        for count in counts:
            scale = w.new_full((task.k,), self.scale)
            near = nearest(z, keys, labels, count.expand(task.k), scale, task.model.classes, int(count))
            of_near = near.gather(2, truth.clamp_min(0)[..., None])[..., 0]
            mixed = grid[:, None, None] * of_near + (1 - grid[:, None, None]) * of_model  # (grid, k, n)
            losses.append((-mixed.clamp_min(1e-30).log() * (truth >= 0)).sum(2))
        best = torch.stack(losses).flatten(0, 1).argmin(0)  # (k,), the first of equals
        none = task.counts("validation") == 0
        weight = torch.where(none, usual, grid[best % len(grid)])
        return weight, counts[torch.where(none, 0, best // len(grid))]
