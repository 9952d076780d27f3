"""NewMethod: FedAvg from a mix of the global model and the silo's own. Say what yours does, and cite its paper."""

from dataclasses import dataclass

from torch import Tensor

import coterie as co


class Kept(co.Private):  # never leaves the silo; what travels (GlobalDown, ModelUp) is declared likewise
    w: Tensor = co.rows("the silo's model after its last round", role="model")


@dataclass(frozen=True)
class NewMethod(co.Method[co.Global, co.GlobalDown, co.ModelUp, Kept, co.Weights]):
    """The hyper-parameters are fields; first the server's half, then the silo's."""

    summary = "FedAvg that starts from a mix of the global model and the silo's own"
    share: float = co.option(0.5, "share of the global model in what a silo starts from", low=0, high=1)

    def open(self, roster: co.Roster, model: co.Model) -> co.Global:  # the server's state; it sees uploads alone
        return co.Global(w=model.start(roster.seed))

    def send(self, server: co.Global, cohort: co.Cohort) -> co.GlobalDown:
        return co.GlobalDown(w=server.w)  # (d,), one for all; a model for each silo of the cohort would be (k, d)

    def receive(self, server: co.Global, cohort: co.Cohort, up: co.ModelUp) -> co.Global:
        return co.Global(w=co.weighted_mean(up.w, cohort.sizes))  # up.w is (k, d): those who replied, at least one

    def enroll(self, roster: co.Roster, model: co.Model, rows: Tensor) -> Kept:  # kept before the first round
        return Kept(w=model.starts(roster.seed, roster.take(rows).names, common=True))

    def begin(self, task: co.Task, down: co.GlobalDown, private: Kept) -> co.Weights:  # k silos at once, one row each
        w = self.share * co.spread(down.w, task.k) + (1 - self.share) * private.w  # new tensors: change none in place
        return co.Weights(w=w, opt=task.optimizer.init(w))

    def step(self, task: co.Task, state: co.Weights, batch: co.Batch) -> co.Weights:
        return co.plain_step(task, state, batch)  # w ← w − η ∇ℓ(w; batch)

    def end(self, task: co.Task, state: co.Weights, down: co.GlobalDown, private: Kept) -> tuple[co.ModelUp, Kept]:
        return co.ModelUp(w=state.w), Kept(w=state.w)  # what leaves the silo, and what it keeps

    def personal(self, task: co.Task, down: co.GlobalDown, private: Kept) -> co.Predictor:  # what a silo would deploy
        return co.Predictor(models=private.w)

    def host(self, server: co.Global, newcomers: co.Cohort, up: co.ModelUp | None) -> co.GlobalDown:
        return co.GlobalDown(w=server.w)  # to silos that arrive after training

    def adapt(self, task: co.Task, down: co.GlobalDown, private: Kept | None) -> tuple[None, Kept]:
        return None, Kept(w=co.spread(down.w, task.k))  # and what they make of it
