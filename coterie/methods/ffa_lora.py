"""FFA-LoRA: of low-rank adapters A is one random start for all and stands still, B is trained and averaged.

Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024.

The mean of products B_i A is the product of their mean with A: averaging is exact, as it is not where A moves too. A is
made from the seed by every silo and does not cross. Whatever else of the model trains (a head, say) is averaged too. A
model without adapters is trained as by FedAvg.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.engine.method import Columns, Model, Nothing, Private, Task
from coterie.methods.parts.partly import PartStill
from coterie.methods.wrappers.personal import Personal, WithOwn


@dataclass(frozen=True)
class FFALoRA(Personal):
    """FedAvg of B, under one frozen A."""

    by_columns = True
    paper = "Sun et al., ICLR 2024"
    summary = "of low-rank adapters B is averaged under one random A that stands still"
    base = PartStill("lora_A")

    def own(self, model: Model) -> Columns:
        return model.columns("lora_A", empty=True)

    def keeps(self, own: Tensor, inner: Private) -> WithOwn:
        return WithOwn(inner=inner)  # A is everybody's, and made again from the seed

    def adapt(self, task: Task, down: Any, private: WithOwn | None) -> tuple[None, WithOwn]:
        """A newcomer gets the global model."""
        return None, WithOwn(inner=Nothing())
