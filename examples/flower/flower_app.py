"""A Flower app with FedAMP: every silo gets a model of its own. The data, the network and the loop are yours."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from sklearn.datasets import load_digits
from torch import nn

import coterie as co
from coterie.deploy.flower.halves import ServerHalf, SiloHalf

METHOD = co.FedAMP(sigma="auto")
client = ClientApp()
server = ServerApp()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def silo(context: Context) -> SiloHalf:
    place = int(context.node_config["partition-id"])
    x, y = load_digits(return_X_y=True)
    own = (y < 5) == (place % 2 == 0)  # of two kinds: silos of the digits 0 to 4, and of 5 to 9
    x, y = x[own][place::8] / 16, y[own][place::8]
    train, test = (x[::2], y[::2]), (x[1::2], y[1::2])
    return SiloHalf(METHOD, net, f"silo-{place}", train, test=test, lr=0.1, batch_size=8, local_epochs=5)


@client.train()
def train(message: Message, context: Context) -> Message:
    return silo(context).train(message, context)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return silo(context).evaluate(message, context)


@server.main()
def main(grid: Grid, context: Context) -> None:
    half = ServerHalf(METHOD, net)
    half.enroll(grid.send_and_receive(half.greetings(grid.get_node_ids()), timeout=300))
    for _ in range(int(context.run_config["rounds"])):
        missing = half.receive(grid.send_and_receive(half.messages("train"), timeout=300))
        scores = half.scores(grid.send_and_receive(half.messages("evaluate"), timeout=300))
        print(half.round, {silo: f"{each['accuracy']:.1%}" for silo, each in scores.items()}, missing or "")
