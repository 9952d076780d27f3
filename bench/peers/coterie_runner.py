"""Ours: `WORK METHOD ROUNDS DEVICE`, all clients as rows of one process."""

from collections.abc import Mapping

import numpy as np
import torch
import work
from torch import Tensor

from coterie.data.silo import Part, Silo
from coterie.engine import task
from coterie.engine.method import Cohort
from coterie.engine.plan import BatchPlan
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.methods.ditto import Ditto
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedavg import FedAvg


class InFileOrder(BatchPlan):
    """Draws its order as ever, and takes the file's: that of all others, so that losses can be compared."""

    def __init__(self, *arguments: object, **more: object) -> None:
        super().__init__(*arguments, **more)
        self.order[:] = np.arange(self.order[0].size).reshape(self.order.shape[1:])


task.BatchPlan = InFileOrder


def run(given: work.Work, name: str, rounds: int) -> tuple[list[float], list[Mapping[str, Tensor]]]:
    """The rounds of `coterie.engine.rounds` without their measuring: send, train, receive."""
    methods = {
        "fedavg": FedAvg(),
        "fedamp": FedAMP(weights="step", sigma=work.SIGMA, alpha=given.alpha, beta=1 / work.PULL),
        "ditto": Ditto(lam=work.PULL),
    }
    method, x, y = methods[name], given.x.cpu().numpy(), given.y.cpu().numpy()
    model = Model(given.model().cpu(), work.CLASSES, given.device)
    model.probe(given.x[0, :2])
    none = Part(x[0, :1], y[0, :1])
    silos = [Silo(f"silo-{i:03d}", Part(x[i], y[i]), none, none) for i in range(given.size.clients)]
    training = Training(rounds=rounds, local_epochs=1, batch_size=given.size.batch, optimizer="sgd", lr=given.lr)
    engine = Simulator(method, silos, model, training, 0, "auto")
    server, seconds = method.open(engine.roster, model), []
    for round in range(rounds):
        began = work.now(given.device)
        cohort = Cohort(torch.arange(len(silos), device=given.device), round, engine.roster, engine.model)
        replies = engine.train(cohort, method.send(server, cohort))
        server = method.receive(server, replies.cohort, replies.up)
        seconds.append(work.now(given.device) - began)
    models = {"fedavg": lambda: server.w[None], "fedamp": lambda: server.w, "ditto": lambda: engine.private().v}
    return seconds, [model.layout.named(row) for row in models[name]()]


if __name__ == "__main__":
    asked = work.asked()
    work.report(*run(asked.work, asked.method, asked.rounds))
