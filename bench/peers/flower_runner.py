"""Flower: `WORK METHOD ROUNDS DEVICE`, its simulation engine (Ray) with one worker for each core."""

import os
import time
from collections.abc import Iterable

import work
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

ASKED = work.asked()
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of one client."""
    given = ASKED.work
    model = given.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    work.epoch(given, int(context.node_config["partition-id"]), model)
    metrics = MetricRecord({"num-examples": given.size.samples})
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
        if failed or len(replies) < ASKED.work.size.clients:
            raise RuntimeError(f"{failed} of {len(replies)} clients failed, {ASKED.work.size.clients} were asked")
        result = super().aggregate_train(server_round, replies)
        seconds.append(time.perf_counter() - self.began)
        return result


seconds: list[float] = []


@server.main()
def main(grid: Grid, context: Context) -> None:
    """The rounds, without evaluation."""
    given = ASKED.work
    count = given.size.clients
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(given.weights), num_rounds=ASKED.rounds)
    work.report(seconds, [result.arrays.to_torch_state_dict()])


if __name__ == "__main__":
    cores = os.cpu_count()
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=ASKED.work.size.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 1 / cores if ASKED.device == "cuda" else 0.0},
            "init_args": {"num_cpus": cores},
        },
    )
