"""FL4Health: `WORK METHOD ROUNDS DEVICE`, its server and its clients in one process, one client after another."""

import logging
from pathlib import Path

import torch
import torchvision_operators  # noqa: F401 (before fl4health, which imports torchvision)
import work
from fl4health.clients.basic_client import BasicClient
from fl4health.clients.ditto_client import DittoClient
from fl4health.servers.adaptive_constraint_servers.ditto_server import DittoServer
from fl4health.servers.base_server import FlServer
from fl4health.strategies.basic_fedavg import BasicFedAvg
from fl4health.strategies.fedavg_with_adaptive_constraint import FedAvgWithAdaptiveConstraint
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ASKED = work.asked()


class Hospital:
    """What FL4Health asks of a client of one's own."""

    def get_model(self, config: dict[str, object]) -> nn.Module:
        return ASKED.work.model()

    def get_criterion(self, config: dict[str, object]) -> nn.Module:
        return nn.CrossEntropyLoss()

    def get_data_loaders(self, config: dict[str, object]) -> tuple[DataLoader, DataLoader]:
        given, client = ASKED.work, int(self.client_name)
        loader = DataLoader(TensorDataset(given.x[client], given.y[client]), batch_size=given.size.batch)
        return loader, loader  # the second is never looked at: evaluation is off


class Plain(Hospital, BasicClient):
    """FedAvg's."""

    def get_optimizer(self, config: dict[str, object]) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=ASKED.work.lr)


class Personal(Hospital, DittoClient):
    """Ditto's."""

    def get_optimizer(self, config: dict[str, object]) -> dict[str, torch.optim.Optimizer]:
        models = {"global": self.global_model, "local": self.model}
        return {name: torch.optim.SGD(model.parameters(), lr=ASKED.work.lr) for name, model in models.items()}


class Near(ClientProxy):
    """A client in the server's own process, where Flower has a connection to another."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        kind = Personal if ASKED.method == "ditto" else Plain
        self.client = kind(Path(), [], torch.device(ASKED.device), client_name=name)

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        arrays, count, metrics = self.client.fit(parameters_to_ndarrays(ins.parameters), ins.config)
        return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), count, metrics)

    def evaluate(self, *unused: object) -> None: ...
    def get_parameters(self, *unused: object) -> None: ...
    def get_properties(self, *unused: object) -> None: ...
    def reconnect(self, *unused: object) -> None: ...


def main() -> None:
    """The rounds, without evaluation."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    given, count = ASKED.work, ASKED.work.size.clients
    manager, everyone, seconds = SimpleClientManager(), [Near(str(i)) for i in range(count)], []
    for client in everyone:
        manager.register(client)
    how = {
        "min_fit_clients": count,
        "min_available_clients": count,
        "fraction_evaluate": 0.0,
        "on_fit_config_fn": lambda round: {"current_server_round": round, "local_epochs": 1},
        "initial_parameters": ndarrays_to_parameters([value.numpy() for value in given.weights.values()]),
        "accept_failures": False,
    }
    kind, strategy = FlServer, BasicFedAvg
    if ASKED.method == "ditto":
        kind, strategy = DittoServer, FedAvgWithAdaptiveConstraint
        how["initial_loss_weight"] = work.PULL

    class Timed(kind):
        """How long each round took."""

        def fit_round(self, server_round: int, timeout: float | None) -> object:
            began = work.now(ASKED.device)
            found = super().fit_round(server_round, timeout)
            seconds.append(work.now(ASKED.device) - began)
            return found

    server = Timed(manager, {}, strategy(**how), accept_failures=False)
    server.set_max_workers(1)
    server.fit(ASKED.rounds, None)
    if ASKED.method == "ditto":
        models = [client.client.model.state_dict() for client in everyone]
    else:
        arrays = map(torch.from_numpy, parameters_to_ndarrays(server.parameters))
        models = [dict(zip(given.weights, arrays, strict=True))]
    work.report(seconds, models)


if __name__ == "__main__":
    main()
