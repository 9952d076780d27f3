"""NewMethod: FedAvg from a mix of the global model and the silo's own. Say what yours does, and cite its paper."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.engine.method import Batch, Cohort, Down, Method, Model, Predictor, Private, Roster, Task, Up, spread
from coterie.engine.task import Weights, plain_step
from coterie.methods.parts.averaging import Global, GlobalDown, ModelUp, weighted_mean
from coterie.options import option
from coterie.wire import rows


class Kept(Private):  # never leaves the silo; what travels (GlobalDown, ModelUp) is declared likewise
    w: Tensor = rows("the silo's model after its last round", role="model")


@dataclass(frozen=True)
class NewMethod(Method):
    """The hyper-parameters are fields; first the server's half, then the silo's."""

    summary: ClassVar[str] = "FedAvg that starts from a mix of the global model and the silo's own"
    down: ClassVar[type[Down]] = GlobalDown
    up: ClassVar[type[Up]] = ModelUp
    private: ClassVar[type[Private]] = Kept
    share: float = option(0.5, "share of the global model in what a silo starts from", low=0, high=1)

    def open(self, roster: Roster, model: Model) -> Global:  # the server's state; it sees uploads and nothing else
        return Global(w=model.start(roster.seed))

    def send(self, server: Global, cohort: Cohort) -> GlobalDown:
        return GlobalDown(w=server.w)  # (d,), one for all; a model for each silo of the cohort would be (k, d)

    def receive(self, server: Global, cohort: Cohort, up: ModelUp) -> Global:
        return Global(w=weighted_mean(up.w, cohort.sizes))  # up.w is (k, d): those who replied, at least one

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Kept:  # what silos keep before the first round
        return Kept(w=model.starts(roster.seed, roster.take(rows).names, common=True))

    def begin(self, task: Task, down: GlobalDown, private: Kept) -> Weights:  # k silos at once, one row each
        w = self.share * spread(down.w, task.k) + (1 - self.share) * private.w  # new tensors: change none in place
        return Weights(w=w, opt=task.optimizer.init(w))

    def step(self, task: Task, state: Weights, batch: Batch) -> Weights:
        return plain_step(task, state, batch)  # w ← w − η ∇ℓ(w; batch); with a pull: coterie/methods/parts/proximal.py

    def end(self, task: Task, state: Weights, down: GlobalDown, private: Kept) -> tuple[ModelUp, Kept]:
        return ModelUp(w=state.w), Kept(w=state.w)  # what leaves the silo, and what it keeps

    def personal(self, task: Task, down: GlobalDown, private: Kept) -> Predictor:  # the model each silo would deploy
        return Predictor(models=private.w)

    def host(self, server: Global, newcomers: Cohort, up: None) -> GlobalDown:  # to silos that arrive after training
        return GlobalDown(w=server.w)

    def adapt(self, task: Task, down: GlobalDown, private: None) -> tuple[None, Kept]:  # and what they make of it
        return None, Kept(w=spread(down.w, task.k))
