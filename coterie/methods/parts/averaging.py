"""The server half of every method with one global model: the mean of the silos' models, weighted by their samples."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from coterie.engine.method import Cohort, Method, Model, Nothing, PrivateT, Roster, StateT, Task, spread
from coterie.engine.task import begun
from coterie.methods.parts.proximal import Trained
from coterie.wire import Deployable, Down, Predictor, Private, Server, Up, rows, shared


def weighted_mean(models: Tensor, weights: Tensor) -> Tensor:
    """Σ_i weights_i models_i / Σ_i weights_i, over the first axis."""
    weights = weights.double()  # two whole numbers divide into float32
    share = (weights / weights.sum()).to(models.dtype)
    return torch.einsum("i,i...->...", share, models)


class Global(Server):
    """The global model."""

    w: Tensor = shared("the global model", role="model")


class GlobalDown(Down):
    """The global model, the same for all."""

    w: Tensor = shared("the global model", role="model")


class ModelUp(Up):
    """A silo's model after local training."""

    w: Tensor = rows("the silo's model after local training", role="model", seen_by="server")


@dataclass(frozen=True)
class GlobalModel(Method[Global, GlobalDown, ModelUp, PrivateT, StateT]):
    """What FedAvg's server does; the methods built on it differ in what silos do."""

    by_columns = True
    averages = True

    def open(self, roster: Roster, model: Model) -> Global:
        return Global(w=model.start(roster.seed))

    def send(self, server: Global, cohort: Cohort) -> GlobalDown:
        return GlobalDown(w=server.w)

    def receive(self, server: Global, cohort: Cohort, up: ModelUp) -> Global:
        # McMahan et al., Algorithm 1: w ← Σ_k n_k/n w_k, over those who replied
        return Global(w=weighted_mean(up.w, cohort.sizes))

    def begin(self, task: Task, down: GlobalDown, private: PrivateT) -> StateT:
        """Local training starts from the global model."""
        return cast(StateT, begun(task, spread(down.w, task.k)))

    def host(self, server: Global, newcomers: Cohort, up: ModelUp | None) -> GlobalDown:
        return GlobalDown(w=server.w)


@dataclass(frozen=True)
class OneModel(GlobalModel[Nothing, Trained]):
    """And what its silos do, but for their training: each sends its model, keeps nothing and deploys the global one."""

    def end(self, task: Task, state: Trained, down: GlobalDown, private: Nothing) -> tuple[ModelUp, Nothing]:
        return ModelUp(w=state.w), private

    def personal(self, task: Task, down: GlobalDown, private: Nothing) -> Deployable:
        return global_predictor(task, down)

    def adapt(self, task: Task, down: GlobalDown, private: Nothing | None) -> tuple[None, Nothing]:
        """A newcomer gets the global model, which it uses as the others do."""
        return None, Nothing()


class Copy(Private):
    """The silo's own model as its last local training left it."""

    w: Tensor = rows("its own model after local training", role="model")


@dataclass(frozen=True)
class OwnCopies(GlobalModel[Copy, Trained]):
    """Or each keeps what it sends, and deploys that."""

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Copy:
        return Copy(w=model.starts(roster.seed, roster.take(rows).names, common=True))

    def end(self, task: Task, state: Trained, down: GlobalDown, private: Copy) -> tuple[ModelUp, Copy]:
        return ModelUp(w=state.w), Copy(w=state.w)


def global_predictor(task: Task, down: GlobalDown) -> Predictor:
    """The global model for every silo."""
    return Predictor(models=spread(down.w, task.k))
