"""Flower: `WORK METHOD ROUNDS`, its simulation engine (Ray) with one worker for each core."""

import os
import time
from collections.abc import Iterable

import torch
import work
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional as F

PATH, METHOD, ROUNDS = work.asked()
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of one client."""
    x, y = (part[int(context.node_config["partition-id"])] for part in work.data(PATH))
    model = work.mlp()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.LR)
    for batch in torch.randperm(work.SAMPLES).split(work.BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": work.SAMPLES})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """How long each round took, from drawing its clients to their mean."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.began = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        failed = sum(reply.has_error() for reply in replies)
        if failed or len(replies) < work.CLIENTS:
            raise RuntimeError(f"{failed} of {len(replies)} clients failed, {work.CLIENTS} were asked")
        result = super().aggregate_train(server_round, replies)
        seconds.append(time.perf_counter() - self.began)
        return result


seconds: list[float] = []


@server.main()
def main(grid: Grid, context: Context) -> None:
    """The rounds, without evaluation."""
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=work.CLIENTS, min_available_nodes=work.CLIENTS)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(work.first(PATH)), num_rounds=ROUNDS)
    work.report("flower", METHOD, seconds, work.loss(PATH, result.arrays.to_torch_state_dict()))


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=work.CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count()},
        },
    )
