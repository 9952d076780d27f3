"""FedBABU: silos train and average the body alone, under one random head; each fine-tunes the model for itself.

Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022 (Algorithm 1).

The head is the random start that all silos make of the seed: it neither crosses nor moves before the fine-tuning, which
is done anew for every use and changes nothing of the federation.
"""

from dataclasses import dataclass
from typing import Any, Literal

from coterie.engine.method import Columns, Model, Predictor, Task
from coterie.methods.parts.partly import PartStill, fit_on
from coterie.methods.wrappers.personal import MadeAgain, OwnCopy, WithOwn
from coterie.options import option


@dataclass(frozen=True)
class FedBABU(MadeAgain, OwnCopy):
    """The body aggregated and updated in a federation, then fine-tuned by each silo."""

    paper = "Oh et al., ICLR 2022"
    summary = "the body is averaged under one fixed random head, and fine-tuned by each silo"
    base = PartStill("head")

    ft_epochs: int = option(5, "epochs of fine-tuning", low=0)
    tune: Literal["whole", "head", "body"] = option("whole", "what the fine-tuning trains")

    def own(self, model: Model) -> Columns:
        return model.columns("head")

    def personal(self, task: Task, down: Any, private: WithOwn) -> Predictor:
        w = self.sent(task, down, private).w
        if not self.ft_epochs:
            return Predictor(models=w)
        columns = task.model.columns("*" if self.tune == "whole" else self.tune)
        return Predictor(models=fit_on(task, w, columns, "finetune", self.ft_epochs))
