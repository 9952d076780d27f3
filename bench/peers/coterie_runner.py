"""Ours: `WORK METHOD ROUNDS`, all clients as rows of one process."""

import time

import numpy as np
import torch
import work

from coterie.data.silo import Part, Silo
from coterie.engine.method import Cohort
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedavg import FedAvg

METHODS = {
    "fedavg": FedAvg(),
    "fedamp": FedAMP(weights="step", sigma=work.SIGMA, alpha=work.ALPHA, beta=1 / work.PULL),
}


def main() -> None:
    """The rounds of `coterie.engine.rounds` without their measuring: send, train, receive."""
    path, name, rounds = work.asked()
    x, y = (part.numpy() for part in work.data(path))
    method, module = METHODS[name], work.mlp()
    module.load_state_dict(work.first(path))
    model = Model(module, work.CLASSES)
    model.probe(torch.from_numpy(x[0, :2]))
    none = Part(np.zeros((1, work.INPUTS), np.float32), np.zeros(1, np.int64))
    silos = [Silo(f"silo-{i:03d}", Part(x[i], y[i]), none, none) for i in range(work.CLIENTS)]
    training = Training(rounds=rounds, local_epochs=1, batch_size=work.BATCH, optimizer="sgd", lr=work.LR)
    engine = Simulator(method, silos, model, training, 0, "auto")
    server, seconds = method.open(engine.roster, model), []
    for round in range(rounds):
        began = time.perf_counter()
        cohort = Cohort(torch.arange(work.CLIENTS), round, engine.roster, engine.model)
        replies = engine.train(cohort, method.send(server, cohort))
        server = method.receive(server, replies.cohort, replies.up)
        seconds.append(time.perf_counter() - began)
    averaged = server.w if name == "fedavg" else server.w.mean(0)
    work.report("coterie", name, seconds, work.loss(path, model.layout.named(averaged)))


if __name__ == "__main__":
    main()
