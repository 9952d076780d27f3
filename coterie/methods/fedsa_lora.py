"""FedSA-LoRA: of low-rank adapters the A matrices are averaged, each silo's B matrices are its own.

Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated Learning", ICLR 2025.

The paper finds that A learns what silos have in common and B what is a silo's own. Whatever else of the model trains (a
head, say) is averaged too. A silo deploys its model as its own training left it; the mean A with its own B is its cloud
model. A model without adapters is trained as by FedAvg-local.
"""

from dataclasses import dataclass

from coterie.engine.method import Columns, Model
from coterie.methods.fedavg_local import FedAvgLocal
from coterie.methods.wrappers.personal import OwnCopy


@dataclass(frozen=True)
class FedSALoRA(OwnCopy):
    """FedAvg of A; B stays."""

    paper = "Guo et al., ICLR 2025"
    summary = "of low-rank adapters A is averaged, each silo's B is its own"
    base = FedAvgLocal()

    def own(self, model: Model) -> Columns:
        return model.columns("lora_B", empty=True)
