"""A model and the silo's own samples beside it: predictions are mixed with those of a sample's nearest neighbours."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from coterie.engine.predictors import Unreadable
from coterie.engine.rows import Model
from coterie.wire import Build, Deployable, Form, Network, rows, under


class Neighbours(Deployable):
    """λ · nearest neighbours among the silo's samples, by their features, + (1 − λ) · the model: of probabilities."""

    kind: ClassVar[str] = "neighbours"

    models: Tensor = rows("the model", role="model")
    keys: Tensor = rows("the features of the silo's samples", "n", "z")
    labels: Tensor = rows("their classes; -1 where the silo has fewer samples", "n")
    weight: Tensor = rows("λ, the neighbours' share of the prediction")
    neighbours: Tensor = rows("how many neighbours")
    scale: Tensor = rows("the kernel's width")

    @property
    def form(self) -> Form:
        return [self.kind]  # a file has it as JSON

    @property
    def networks(self) -> int:
        return 2  # once for the features, once for the outputs

    def predict(self, model: Network, x: Tensor, beside: Tensor | None = None) -> Tensor:
        assert isinstance(model, Model)
        out, _ = model.forward(self.models, x, training=False)
        z = model.features(self.models, x).flatten(2)
        return self.mixed(out.softmax(2), z)

    def mixed(self, p: Tensor, z: Tensor) -> Tensor:
        """Probabilities (k, b, C) of samples with features z (k, b, z)."""
        most = int(self.neighbours.max())
        near = nearest(z, self.keys, self.labels, self.neighbours, self.scale, p.shape[2], most)
        share = self.weight[:, None, None]
        return share * near + (1 - share) * p

    def module(self, model: Network, row: int) -> nn.Module:
        assert isinstance(model, Model)
        some = self.labels[row] >= 0
        kept = (self.keys[row, some], self.labels[row, some], self.weight[row], self.neighbours[row], self.scale[row])
        name = torch.tensor(list(model.head.encode()), dtype=torch.uint8)
        return Remembering(model.module_of(self.models[row]).cpu(), name, *(t.cpu() for t in kept))

    @classmethod
    def read(cls, form: Form, tensors: dict[str, Tensor], build: Build, classes: int) -> nn.Module:
        network, kept = build(under("network.", tensors)), [tensors.get(name) for name in Remembering.KEPT]
        name, keys, labels, *others = (torch.empty(0) if t is None else t for t in kept)
        try:
            head = bytes(name.to(torch.uint8).tolist()).decode()
            network.get_submodule(head)
        except (AttributeError, ValueError):
            raise Unreadable("it does not name a layer of its model as the head; take a whole file") from None
        whole = keys.ndim == 2 and labels.shape == keys.shape[:1] and len(keys) and all(t.numel() == 1 for t in others)
        if not whole or not 0 <= int(labels.min()) <= int(labels.max()) < classes or int(others[1]) < 1:
            raise Unreadable("its samples are not those of a model of so many classes; take a whole file")
        return Remembering(network, name, keys, labels, *others)


class Remembering(nn.Module):
    """One silo's model with its samples."""

    KEPT = ("head", "keys", "labels", "weight", "neighbours", "scale")

    def __init__(self, network: nn.Module, *kept: Tensor) -> None:
        super().__init__()
        self.network = network
        for name, t in zip(self.KEPT, kept, strict=True):
            self.register_buffer(name, t.reshape(()) if name in self.KEPT[3:] else t)

        self.layer, self.most = bytes(kept[0].tolist()).decode(), int(kept[4])

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """(n, C) probabilities."""
        _, keys, labels, weight, count, scale = (self.get_buffer(name) for name in self.KEPT)
        seen: list[Tensor] = []
        hook = self.network.get_submodule(self.layer).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            p = self.network(x).softmax(1)
        finally:
            hook.remove()
        z = seen[0].flatten(1)[None]
        near = nearest(z, keys[None], labels[None], count[None], scale[None], p.shape[1], self.most)[0]
        mixed: Tensor = weight * near + (1 - weight) * p
        return mixed


def nearest(z: Tensor, keys: Tensor, labels: Tensor, count: Tensor, scale: Tensor, classes: int, most: int) -> Tensor:
    """The classes (k, b, C) of the nearest of each silo's samples, weighted by exp(−‖z − key‖² / (scale · dim z)).

    `count` (k,) is how many, `most` the largest of these.
    """
    lengths = z.square().sum(2)[..., None] + keys.square().sum(2)[:, None]
    apart = (lengths - 2 * z @ keys.mT).clamp_min(0) / z.shape[2]
    apart = apart.masked_fill(labels[:, None] < 0, torch.inf)
    most = min(most, keys.shape[1])
    found = apart.topk(most, 2, largest=False)  # the nearest first
    beyond = torch.arange(most, device=z.device) >= count[:, None, None]
    share = (-found.values / scale[:, None, None]).masked_fill(beyond, -torch.inf).softmax(2)
    theirs = labels.clamp_min(0)[:, None].expand(-1, z.shape[1], -1).gather(2, found.indices)
    return z.new_zeros(*z.shape[:2], classes).scatter_add(2, theirs, share)
