"""fluke: `WORK METHOD ROUNDS DEVICE`, its clients in memory with its own fast loader."""

import torchvision_operators  # noqa: F401 (before fluke, which imports torchvision)
import work
from fluke import DDict, FlukeENV
from fluke.algorithms.ditto import Ditto
from fluke.algorithms.fedamp import FedAMP
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver


class Clock(FederationObserver):
    """How long each round took."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds = device, []

    def start_round(self, round: int, global_model: object) -> None:
        self.began = work.now(self.device)

    def end_round(self, round: int) -> None:
        self.seconds.append(work.now(self.device) - self.began)


def main() -> None:
    """Evaluation is off: no client and no server has test data."""
    asked = work.asked()
    given, count = asked.work, asked.work.size.clients
    loaders = [
        FastDataLoader(x, y, num_labels=work.CLASSES, batch_size=given.size.batch, shuffle=False)
        for x, y in zip(given.x, given.y, strict=True)
    ]
    FlukeENV().set_seed(0)
    FlukeENV().set_device(asked.device)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    splitter = DataSplitter(DummyDataContainer(loaders, [None] * count, None, work.CLASSES))
    model = given.model()
    client = {
        "batch_size": given.size.batch,
        "local_epochs": 1,
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": given.lr},
        "scheduler": {"gamma": 1, "step_size": 1},
    }
    algorithm, more, server = {
        "fedavg": (FedAVG, {}, {"weighted": True}),
        # it divides lam by the learning rate
        "fedamp": (FedAMP, {"model": model, "lam": work.PULL * given.lr}, {"sigma": work.SIGMA, "alpha": given.alpha}),
        "ditto": (Ditto, {"model": model, "lam": work.PULL, "tau": 1}, {"weighted": True}),
    }[asked.method]
    federation = algorithm(count, splitter, DDict(client=client | more, server=server, model=model))
    clock = Clock(asked.device)
    federation.set_callbacks([clock])
    federation.run(n_rounds=asked.rounds, eligible_perc=1.0)
    models = {
        "fedavg": lambda: [federation.server.model],
        "fedamp": lambda: [client.model for client in federation.clients],
        "ditto": lambda: [client.personalized_model for client in federation.clients],
    }[asked.method]()
    work.report(clock.seconds, [model.state_dict() for model in models])


if __name__ == "__main__":
    main()
