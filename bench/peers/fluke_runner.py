"""fluke: `WORK METHOD ROUNDS`, its clients in memory with its own fast loader."""
# ruff: noqa: E402 (the missing operators come before what misses them)

import time

import torch
import work

# fluke imports torchvision for its data sets and networks; beside a CPU build of torch the registry's torchvision does
# not import for want of two operators, which nobody calls here.
_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV
from fluke.algorithms.fedamp import FedAMP
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver


class Clock(FederationObserver):
    """How long each round took."""

    def __init__(self) -> None:
        self.seconds = []

    def start_round(self, round: int, global_model: object) -> None:
        self.began = time.perf_counter()

    def end_round(self, round: int) -> None:
        self.seconds.append(time.perf_counter() - self.began)


def main() -> None:
    """Evaluation is off: no client and no server has test data."""
    path, method, rounds = work.asked()
    x, y = work.data(path)
    loaders = [
        FastDataLoader(x[i], y[i], num_labels=work.CLASSES, batch_size=work.BATCH, shuffle=True)
        for i in range(work.CLIENTS)
    ]
    FlukeENV().set_seed(0)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    splitter = DataSplitter(DummyDataContainer(loaders, [None] * work.CLIENTS, None, work.CLASSES))
    model = work.mlp()
    model.load_state_dict(work.first(path))
    client = {
        "batch_size": work.BATCH,
        "local_epochs": 1,
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": work.LR},
        "scheduler": {"gamma": 1, "step_size": 1},
    }
    algorithm, server = FedAVG, {"weighted": True}
    if method == "fedamp":
        algorithm, server = FedAMP, {"sigma": work.SIGMA, "alpha": work.ALPHA}
        client |= {"model": model, "lam": work.PULL * work.LR}  # it divides lam by the learning rate
    federation = algorithm(work.CLIENTS, splitter, DDict(client=client, server=server, model=model))
    clock = Clock()
    federation.set_callbacks([clock])
    federation.run(n_rounds=rounds, eligible_perc=1.0)
    if method == "fedamp":
        averaged = work.mean([client.model.state_dict() for client in federation.clients])
    else:
        averaged = federation.server.model.state_dict()
    work.report("fluke", method, clock.seconds, work.loss(path, averaged))


if __name__ == "__main__":
    main()
