"""FedBN: everything but the normalisation layers is averaged; each silo's are its own.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021 (Algorithm 1).

Normalisation is found by the type of a layer (BatchNorm, InstanceNorm, LayerNorm, GroupNorm, RMSNorm), never by its
name, and all of it stays: weights, biases and running statistics. A silo deploys the mean with its own normalisation,
as the published code measures it. A model without such layers is FedAvg's.
"""

from dataclasses import dataclass

from coterie.engine.method import Columns, Model
from coterie.methods.fedavg import FedAvg
from coterie.methods.wrappers.personal import Personal


@dataclass(frozen=True)
class FedBN(Personal):
    """FedAvg without the layers that normalise."""

    paper = "Li et al., ICLR 2021"
    summary = "everything is averaged but normalisation, which is each silo's own"
    base = FedAvg()

    def own(self, model: Model) -> Columns:
        return model.columns("norm", empty=True)  # Algorithm 1: if layer l is not BatchNorm, w ← mean of the w_k
