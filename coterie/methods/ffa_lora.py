"""FFA-LoRA: of low-rank adapters A is one random start for all and stands still, B is trained and averaged.

Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024.

The mean of products B_i A is the product of their mean with A: averaging is exact, as it is not where A moves too. A is
made from the seed by every silo and does not cross. Whatever else of the model trains (a head, say) is averaged too. A
model without adapters is trained as by FedAvg.
"""

from dataclasses import dataclass

from coterie.engine.method import Columns, Model
from coterie.methods.parts.partly import PartStill
from coterie.methods.wrappers.personal import MadeAgain


@dataclass(frozen=True)
class FFALoRA(MadeAgain):
    """FedAvg of B, under one frozen A."""

    paper = "Sun et al., ICLR 2024"
    summary = "of low-rank adapters B is averaged under one random A that stands still"
    base = PartStill("lora_A")

    def own(self, model: Model) -> Columns:
        return model.columns("lora_A", empty=True)
