"""LG-FedAvg: every silo has a body of its own, the head is averaged.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020
(arXiv 2001.01523, Algorithm 1).

The paper's experiments start from some rounds of FedAvg: in the first `warm_rounds` the whole model is averaged, and a
silo's own body starts from the one that those left. Then whole models cross, and after the warm-up a silo sends back
the body that it was sent. A silo deploys its model as its own training left it; the mean head on its own body is its
cloud model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.engine.method import Cohort, Columns, Model, Private, Roster, Task, spread
from coterie.methods.fedavg_local import FedAvgLocal
from coterie.methods.wrappers.personal import OwnCopy, WithOwn
from coterie.options import option
from coterie.wire import rows


class AfterWarmUp(WithOwn):
    """A silo's body, and whether that is its own already."""

    alone: Tensor = rows("whether its body is its own, after the warm-up")


@dataclass(frozen=True)
class LGFedAvg(OwnCopy):
    """FedAvg of the heads; the bodies stay."""

    by_columns = True
    paper = "Liang et al., 2020"
    summary = "the head is averaged, each silo's body is its own"
    base = FedAvgLocal()
    private = property(lambda self: AfterWarmUp if self.warm_rounds else WithOwn)

    warm_rounds: int = option(0, "rounds of FedAvg of the whole model before bodies are personal", low=0)

    def own(self, model: Model) -> Columns:
        return model.columns("body", empty=True)

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if not self.own(model).width:
            return "this model is a head alone and has no body to keep; take one with more layers"
        return super().refusal(roster, model)

    def shared(self, model: Model) -> Columns:
        return self.base.shared(model) if self.warm_rounds else super().shared(model)

    def open(self, roster: Roster, model: Model) -> Any:
        return self.base.open(roster, model) if self.warm_rounds else super().open(roster, model)

    def receive(self, server: Any, cohort: Cohort, up: Any) -> Any:
        after, body = super().receive(server, cohort, up), self.own(cohort.model)
        if cohort.round < self.warm_rounds:
            return after
        return after.replace(w=body.put(after.w, body.take(server.w)))  # the body stays as the warm-up left it

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> WithOwn:
        kept = super().enroll(roster, model, rows)
        return kept.replace(alone=torch.zeros_like(kept.alone)) if isinstance(kept, AfterWarmUp) else kept

    def end(self, task: Task, state: Any, down: Any, private: WithOwn) -> tuple[Any, WithOwn]:
        up, kept = super().end(task, state, down, private)
        if not isinstance(kept, AfterWarmUp):
            return up, kept
        if task.round < self.warm_rounds:
            return up, kept.replace(alone=torch.zeros_like(kept.alone))
        body = self.own(task.model)
        return up.replace(w=body.put(up.w, body.take(down.w))), kept

    def sent(self, task: Task, down: Any, private: WithOwn) -> Any:
        if not isinstance(private, AfterWarmUp):
            return super().sent(task, down, private)
        assert private.own is not None
        own = torch.where(private.alone[:, None], private.own, self.own(task.model).take(down.w))
        return super().sent(task, down, private.replace(own=own))

    def keeps(self, own: Tensor, inner: Private) -> WithOwn:
        kept = super().keeps(own, inner)
        return (
            AfterWarmUp(**vars(kept), alone=torch.ones_like(own[:, 0], dtype=torch.bool)) if self.warm_rounds else kept
        )

    def newly(self, task: Task, down: Any) -> Tensor:
        return self.own(task.model).take(spread(down.w, task.k)) if self.warm_rounds else super().newly(task, down)
