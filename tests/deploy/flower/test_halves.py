"""A method's halves in a Flower app of one's own, on a grid in this process."""

import re
import runpy
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")
from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import coterie as co
from coterie.codec import encode
from coterie.deploy.flower.grid import answer_of
from coterie.deploy.flower.halves import ServerHalf, SiloHalf
from coterie.engine.training import Training
from coterie.run.assembly import Assembly

APP = Path(__file__).parents[3] / "examples" / "flower" / "flower_app.py"
LOCAL = {"lr": 0.1, "local_epochs": 2, "batch_size": 8}


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes messages only within a run."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)


class Grid:
    """Flower's grid with nodes in this process; `call` answers a message, and what it does not answer is lost."""

    def __init__(self, nodes: int, call) -> None:
        self.contexts = {
            7 + i: Context(1, 7 + i, {"partition-id": i}, RecordDict(), {"rounds": 3}) for i in range(nodes)
        }
        self.call = call

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        found = []
        for message in messages:
            node = message.metadata.dst_node_id
            reply = self.call(message, self.contexts[node])
            if reply is not None:
                reply.metadata.__dict__["_src_node_id"] = node
                found.append(reply)
        return found[::-1]  # in no particular order


def net() -> nn.Module:
    return nn.Linear(6, 3)


def silos(method: co.Method, **training: object) -> list[SiloHalf]:
    rng = np.random.default_rng(0)
    made = []
    for i in range(3):
        x = rng.normal(size=(20 + 4 * i, 6))
        y = np.argmax(x[:, :3] + 0.5 * i * x[:, 3:], 1)
        made.append(SiloHalf(method, net, f"silo-{i}", (x[:12], y[:12]), test=(x[12:], y[12:]), **(LOCAL | training)))
    return made


def answers(halves: list[SiloHalf]):
    def call(message: Message, context: Context) -> Message:
        half = halves[int(context.node_config["partition-id"])]
        return getattr(half, message.metadata.message_type)(message, context)

    return call


def rounds(server: ServerHalf, grid: Grid, count: int = 3) -> dict[str, dict[str, float]]:
    server.enroll(grid.send_and_receive(server.greetings(grid.get_node_ids())))
    for _ in range(count):
        server.receive(grid.send_and_receive(server.messages("train")))
    return server.scores(grid.send_and_receive(server.messages("evaluate")))


@pytest.mark.parametrize(
    "method", [co.FedAvg(), co.FedAMP(), co.SCAFFOLD(), co.APPLE(), co.FedEM(components=2)], ids=str
)
def test_a_flower_app_gives_every_silo_what_a_simulation_gives_it(method: co.Method) -> None:
    halves = silos(method)
    found = rounds(ServerHalf(method, net, seed=1), Grid(3, answers(halves)))
    training = Training(rounds=3, measure_every=3, **LOCAL)
    outcome = Assembly([half.silo for half in halves], net, 3, training, 1, "cpu", 1).train(method)
    results = pd.concat(outcome.results)
    expected = results[(results["round"] == 3) & (results["split"] == "test")]
    for silo, scores in found.items():
        own = expected[expected["silo"] == silo].set_index("measure")["value"]
        assert scores["loss"] == pytest.approx(own["loss"], abs=1e-5) and scores["accuracy"] == own["accuracy"]


def test_what_hides_records_hides_them_in_an_app_too() -> None:
    """Gradients that are clipped to nothing move no model."""
    method = co.with_privacy(co.FedAvg(), level="record", clip=1e-30, noise=0.0)
    first, third = (rounds(ServerHalf(method, net), Grid(3, answers(silos(method))), count) for count in (1, 3))
    assert first["silo-0"]["loss"] == pytest.approx(third["silo-0"]["loss"], abs=1e-6)
    with pytest.raises(co.BadInput, match="give privacy its noise"):
        silos(co.with_privacy(co.FedAvg(), level="record", epsilon=2.0))


@pytest.mark.parametrize("method", [co.with_blind(co.FedAvg()), co.with_secagg(co.FedAvg())], ids=["blind", "secagg"])
def test_an_app_of_ones_own_has_no_keys_and_hides_nothing_under_public_ones(method: co.Method) -> None:
    server, grid = ServerHalf(method, net), Grid(3, answers(silos(method)))
    server.enroll(grid.send_and_receive(server.greetings(grid.get_node_ids())))
    replies = grid.send_and_receive(server.messages())
    refusals = [answer_of(each).refusal for each in replies]
    assert len(refusals) == 3 and all("no key for it" in each and "coterie silo" in each for each in refusals)


def test_an_upload_that_was_lost_leaves_no_trace_at_its_silo() -> None:
    method, lose = co.SCAFFOLD(), [True]
    call = answers(silos(method))

    def losing(message: Message, context: Context) -> Message | None:
        reply = call(message, context)
        return None if message.metadata.message_type == "train" and len(lose) == 2 and context.node_id == 8 else reply

    server, grid = ServerHalf(method, net), Grid(3, losing)
    server.enroll(grid.send_and_receive(server.greetings(grid.get_node_ids())))
    assert server.receive(grid.send_and_receive(server.messages())) == {}
    kept = dict(grid.contexts[8].state)
    lose.append(True)
    assert server.receive(grid.send_and_receive(server.messages())) == {"silo-1": "no reply"}
    assert set(kept) < set(grid.contexts[8].state)  # what it kept before is still there
    lose.pop()
    assert server.receive(grid.send_and_receive(server.messages())) == {}
    assert server.received == {"silo-0": 2, "silo-1": 2, "silo-2": 2}
    grid.contexts[8].state.clear()
    missing = server.receive(grid.send_and_receive(server.messages()))
    assert missing == {
        "silo-1": "refused: this silo has lost what it kept after round 3: was its process started anew?"
    }


def test_an_upload_that_is_no_model_does_not_count() -> None:
    call = answers(silos(co.FedAvg()))
    server, grid = ServerHalf(co.FedAvg(), net), Grid(3, call)
    server.enroll(grid.send_and_receive(server.greetings(grid.get_node_ids())))

    def rogue(message: Message, context: Context) -> Message:
        reply = call(message, context)
        if context.node_id == 8:
            reply.content["answer"]["body"] = encode(co.ModelUp(w=torch.full((1, server.model.width), float("nan"))))
        if context.node_id == 9:
            reply.content["answer"]["body"] = encode(co.ModelUp(w=torch.ones(1, 5)))
        return reply

    grid.call = rogue
    missing = server.receive(grid.send_and_receive(server.messages()))
    assert missing["silo-1"] == "'w' is not finite" and "'w' is (1, 5), expected 1 × " in missing["silo-2"]
    assert len(missing) == 2 and torch.isfinite(server.server.w).all()


def test_mistakes_are_named_at_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    call = answers(silos(co.FedAvg()))
    server, grid = ServerHalf(co.FedAMP(), net), Grid(3, call)
    assert server.enroll(grid.send_and_receive(server.greetings(grid.get_node_ids()))) == ["silo-0", "silo-1", "silo-2"]
    missing = server.receive(grid.send_and_receive(server.messages()))
    assert all("the server runs FedAMP(" in why and "this silo FedAvg(" in why for why in missing.values())
    with pytest.raises(co.BadInput, match="unknown key 'local_epoch'; did you mean 'local_epochs'"):
        SiloHalf(co.FedAvg(), net, "a", (np.ones((2, 6)), np.ones(2)), local_epoch=1)
    gone = Grid(1, lambda message, context: Message(Error(code=5, reason="gone"), reply_to=message))
    with pytest.raises(co.BadInput, match="no silo has replied"):
        ServerHalf(co.FedAvg(), net).enroll(gone.send_and_receive(server.greetings([7])))


def test_a_silo_writes_its_model_for_load_model(tmp_path: Path) -> None:
    halves = silos(co.FedAMP())
    grid = Grid(3, answers(halves))
    server = ServerHalf(co.FedAMP(), net)
    rounds(server, grid, 1)
    for message in server.messages("evaluate"):
        context = grid.contexts[message.metadata.dst_node_id]
        halves[int(context.node_config["partition-id"])].evaluate(message, context, save=tmp_path)
    model = co.load_model(tmp_path / "silo-1.safetensors", net)
    x = halves[1].silo.test.x
    assert model.predict(x).shape[0] == len(x)


def test_the_example_is_short_and_trains(capsys: pytest.CaptureFixture[str]) -> None:
    code = [line for line in APP.read_text("utf-8").splitlines() if line.strip()]
    app = runpy.run_path(str(APP))
    grid = Grid(4, lambda message, context: app[message.metadata.message_type](message, context))
    app["main"](grid, Context(1, 1, {}, RecordDict(), {"rounds": 3}))
    assert len(code) < 40
    first, _, last = capsys.readouterr().out.splitlines()
    assert last.startswith("3 {'silo-0': ") and last.count("%") == 4
    accuracy = [sum(map(float, re.findall(r"([\d.]+)%", line))) / 4 for line in (first, last)]
    assert accuracy[0] < accuracy[1] and accuracy[1] > 40
