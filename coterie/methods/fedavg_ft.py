"""FedAvg-FT: the global model of FedAvg, fine-tuned by each silo. FedEM's "FedAvg+" is this with one epoch."""

from dataclasses import dataclass

from coterie.methods.fedavg import FedAvg
from coterie.methods.wrappers.finetune import FineTuned
from coterie.options import option


@dataclass(frozen=True)
class FedAvgFT(FineTuned):
    """FedAvg, fine-tuned on each silo's own data when it is used."""

    paper = "Wang et al., 2019, on McMahan et al., AISTATS 2017"
    summary = "FedAvg's global model, fine-tuned by each silo on its own data"
    base = FedAvg()

    ft_epochs: int = option(1, "epochs of fine-tuning", low=1)
