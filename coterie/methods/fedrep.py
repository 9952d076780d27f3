"""FedRep: a representation that all silos share, under a head of each silo's own, trained in turns.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021 (Algorithm 1).

In a round the head trains for `head_epochs` with the body still, then the body for the study's `local_epochs` with the
head still. BatchNorm's statistics belong to the body and move with it alone. A silo deploys its model as its own
training left it; the mean body under its own head is its cloud model. The mean is weighted by samples, as in the
published code; Algorithm 1 has a plain one.
"""

from dataclasses import dataclass

from coterie.engine.method import Batch, Columns, Method, Model, Task, spread
from coterie.engine.task import Weights, begun
from coterie.methods.parts.averaging import Copy, GlobalDown, OwnCopies
from coterie.methods.parts.partly import fit_on, step_on
from coterie.methods.wrappers.personal import OwnCopy
from coterie.options import option


@dataclass(frozen=True)
class InTurns(OwnCopies[Weights]):
    """FedAvg whose silos train the head first and the body then, and deploy their own copy."""

    lr_by_row = True

    head_epochs: int = 1

    def begin(self, task: Task, down: GlobalDown, private: Copy) -> Weights:
        model, w = task.model, spread(down.w, task.k)
        if self.head_epochs:  # Algorithm 1: h_i ← GRD(f_i(h_i, φ), h_i, α), τ times
            w = fit_on(task, w, model.columns("head"), "head", self.head_epochs)
        return begun(task, w, model.columns("body"))

    def step(self, task: Task, state: Weights, batch: Batch) -> Weights:
        return step_on(task.model.columns("body"))(task, state, batch)  # φ_i ← GRD(f_i(h_i, φ), φ, α)

    def adapt(self, task: Task, down: GlobalDown, private: Copy | None) -> tuple[None, Copy]:
        """A newcomer keeps the representation and the head that it has trained on that."""
        return None, Copy(w=spread(down.w, task.k))


@dataclass(frozen=True)
class FedRep(OwnCopy):
    """The body is averaged; heads stay, and head and body train in turns."""

    paper = "Collins et al., ICML 2021"
    summary = "the body is averaged, each silo's head is its own; they train in turns"

    head_epochs: int = option(10, "epochs of the head in a round, before the body's (the study's local_epochs)", low=0)

    @property
    def base(self) -> Method:
        return InTurns(self.head_epochs)

    def own(self, model: Model) -> Columns:
        return model.columns("head")
