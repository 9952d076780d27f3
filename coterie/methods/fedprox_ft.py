"""FedProx-FT: the global model of FedProx, fine-tuned by each silo."""

from dataclasses import dataclass

from coterie.engine.method import Method
from coterie.methods.fedprox import FedProx
from coterie.methods.wrappers.finetune import FineTuned
from coterie.options import option


@dataclass(frozen=True)
class FedProxFT(FineTuned):
    """FedProx, fine-tuned on each silo's own data when it is used."""

    paper = "Wang et al., 2019, on Li et al., MLSys 2020"
    summary = "FedProx's global model, fine-tuned by each silo on its own data"

    mu: float = option(0.1, "μ, the strength of the pull during training", low=0)
    ft_epochs: int = option(1, "epochs of fine-tuning", low=1)

    @property
    def base(self) -> Method:
        return FedProx(mu=self.mu)
