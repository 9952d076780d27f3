"""SCAFFOLD: FedAvg whose silos correct their steps by how their own gradient differs from everybody's.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020 (equations by its
numbers). As there, the server takes the plain mean over those who replied, not one weighted by samples, and N is all
silos of the federation.

Option II of eq. 4 is defined by plain SGD, K η_l being the sum of the learning rates of the steps that a silo really
took; with momentum or Adam the optimiser is handed the corrected gradient and c_i is option I, the gradient at the
server model over all of the silo's data. BatchNorm's statistics have no control variate and are averaged with η_g = 1.
The paper has no personal model: `deploy="local"` is a silo's copy after local training.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.engine.across import all_silos
from coterie.engine.method import Batch, Cohort, Method, Model, Predictor, Roster, Task, spread
from coterie.engine.solver import SGD
from coterie.engine.task import Weights, stepped
from coterie.methods.perfedavg import Slope
from coterie.options import option
from coterie.wire import Down, Private, Server, Up, rows, shared


class Controlled(Server):
    """The global model and its control variate."""

    w: Tensor = shared("the global model x", role="model")
    c: Tensor = shared("the server's control variate c, the mean of all silos' c_i", role="change")


class ControlledDown(Down):
    """The global model and its control variate, the same for all."""

    w: Tensor = shared("the global model x", role="model")
    c: Tensor = shared("the server's control variate c", role="change")


class ChangeUp(Up):
    """How a silo's model and its control variate changed."""

    dw: Tensor = rows("Δy_i, what local training changed in the global model", role="change", seen_by="server")
    dc: Tensor = rows("Δc_i, the change of the silo's control variate", role="change", seen_by="server")


class Control(Private):
    """A silo's control variate and, where it deploys its own copy, that."""

    c: Tensor = rows("its control variate c_i, an estimate of its gradient", role="change")
    w: Tensor | None = rows("its copy of the global model after local training", role="model", default=None)


class Corrected(Weights):
    """A model y_i in training whose every gradient is corrected."""

    correction: Tensor = rows("c − c_i", role="change")
    lrs: Tensor = rows("Σ of the learning rates of its steps: K η_l where the rate is constant")


def full_gradient(task: Task, x: Tensor) -> Tensor:
    """∇F_i(x) over all training samples of each silo."""
    state = task.run(_add, Slope(w=x, total=torch.zeros_like(x)), "control", 1, every_sample=True)
    return state.total / task.counts().to(x.dtype)[:, None]


def _add(task: Task, state: Slope, batch: Batch) -> Slope:
    samples = batch.mask.sum(1)[:, None]
    return state.replace(total=state.total + samples * task.grad(state.w, batch).grads)


@dataclass(frozen=True)
class SCAFFOLD(Method[Controlled, ControlledDown, ChangeUp, Control, Corrected]):
    """One global model; control variates take the silos' drift out of local training."""

    by_columns = True
    paper = "Karimireddy et al., ICML 2020"
    summary = "FedAvg with control variates that correct each silo's drift"
    lr_by_row = True
    averages = True
    plain_steps = True

    eta_g: float = option(1.0, "η_g, the server's step size", above=0)
    control: Literal["auto", "I"] = option("auto", "c_i by option II with plain SGD, else by I; or always by I")
    deploy: Literal["global", "local"] = option("global", "the personal model: the global one, or the silo's copy")

    def open(self, roster: Roster, model: Model) -> Controlled:
        w = model.start(roster.seed)
        return Controlled(w=w, c=torch.zeros_like(w))

    def send(self, server: Controlled, cohort: Cohort) -> ControlledDown:
        return ControlledDown(w=server.w, c=server.c)

    def receive(self, server: Controlled, cohort: Cohort, up: ChangeUp) -> Controlled:
        # eq. 5: x ← x + η_g/|S| Σ Δy_i and c ← c + 1/N Σ Δc_i, over the silos S that replied
        change = up.dw.mean(0)
        change[: cohort.model.layout.trained] *= self.eta_g  # statistics are averaged, not stepped along
        return Controlled(w=server.w + change, c=server.c + up.dc.sum(0) / len(cohort.roster))

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> Control:
        start = model.starts(roster.seed, roster.take(rows).names, common=True)
        return Control(c=torch.zeros_like(start), w=start if self.deploy == "local" else None)

    def begin(self, task: Task, down: ControlledDown, private: Control) -> Corrected:
        x = spread(down.w, task.k)
        return Corrected(w=x, correction=down.c - private.c, lrs=x.new_zeros(task.k), opt=task.optimizer.init(x))

    def step(self, task: Task, state: Corrected, batch: Batch) -> Corrected:
        gradient = task.grad(state.w, batch) + state.correction  # eq. 3: y_i ← y_i − η_l (g_i(y_i) + c − c_i)
        return stepped(task, state, gradient, batch).replace(lrs=state.lrs + batch.lr)

    def end(self, task: Task, state: Corrected, down: ControlledDown, private: Control) -> tuple[ChangeUp, Control]:
        x = spread(down.w, task.k)
        plain = isinstance(task.optimizer, SGD) and not task.optimizer.momentum
        if plain and self.control == "auto":
            c = private.c - down.c + (x - state.w) / state.lrs[:, None]  # eq. 4, option II
            c[:, task.model.layout.trained :] = 0
        else:
            c = full_gradient(task, x)  # eq. 4, option I
        kept = Control(c=c, w=state.w if self.deploy == "local" else None)
        return ChangeUp(dw=state.w - x, dc=c - private.c), kept

    def personal(self, task: Task, down: ControlledDown, private: Control) -> Predictor:
        return Predictor(models=spread(down.w, task.k) if private.w is None else private.w)

    def host(self, server: Controlled, newcomers: Cohort, up: ChangeUp | None) -> ControlledDown:
        return ControlledDown(w=server.w, c=server.c)

    def adapt(self, task: Task, down: ControlledDown, private: Control | None) -> tuple[None, Control]:
        """A newcomer measures its c_i at the global model and, to deploy its own copy, trains it for one round."""
        settled = Control(c=full_gradient(task, spread(down.w, task.k)))
        if self.deploy == "local":
            state = task.run(self.step, self.begin(task, down, settled), "arrive")
            settled = settled.replace(w=state.w)
        return None, settled

    def trace(self, server: Controlled, everyone: Cohort, private: Control | None) -> dict[str, Tensor]:
        """How far each silo's control variate is from the server's: ‖c_i − c‖."""
        return {} if private is None else {"drift": all_silos((private.c - server.c).norm(dim=1))}
