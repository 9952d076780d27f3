"""FedPer: the body of the model is averaged, the last layers of every silo's model are its own.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (arXiv 1912.00818, Algorithms 1 and 2).

A silo deploys its model as its own training left it, body and personal layers, which fit each other; the mean of the
bodies under its own layers, which were trained on another body, is its cloud model. The mean is weighted by samples.
"""

from dataclasses import dataclass

from coterie.engine.method import Columns, Model
from coterie.methods.fedavg_local import FedAvgLocal
from coterie.methods.wrappers.personal import OwnCopy
from coterie.options import option


@dataclass(frozen=True)
class FedPer(OwnCopy):
    """FedAvg of the base layers W_B; the personalization layers W_P stay."""

    paper = "Arivazhagan et al., 2019"
    summary = "the body is averaged, each silo's head is its own"
    base = FedAvgLocal()  # Algorithm 1: (W_B, W_Pj) ← SGD(W_B, W_Pj); Algorithm 2: W_B ← Σ_j γ_j W_Bj

    layers: tuple[str, ...] = option(("head",), "W_P, the personalization layers: head, norm, or names of layers")

    def own(self, model: Model) -> Columns:
        return model.columns(*self.layers)
