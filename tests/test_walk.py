"""The files through which CONTRIBUTING says that an upload goes are those through which it does."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop import NAMES, job, settle, silos
from walk import traced

from coterie.deploy.home import SILO, SOURCE
from coterie.deploy.messages import Transport
from coterie.deploy.remote import Remote
from coterie.deploy.silo import SiloSide
from coterie.engine.exchange import Engine
from coterie.engine.method import Cohort
from coterie.engine.rounds import Outcome, exchange
from coterie.engine.simulate import Simulator

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
MOST = {"Simulated": 6, "Deployed": 10}
JOB = replace(job("fedavg"), model={"name": "mlp", "hidden": [64]})


def listed(how: str) -> set[str]:
    """The files that CONTRIBUTING names for one of the two ways."""
    walk = re.search(rf"^- {how}, (\d+) files: (.*?)(?=^- |^\S|\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert walk is not None
    named = set(re.findall(r"`(\S+\.py)`", walk[2]))
    assert len(named) == int(walk[1])
    return named


def walked(engine: Engine, method: Any, roster: Any, model: Any) -> tuple[set[str], set[str]]:
    """Two rounds: what left a silo in the first comes back to all silos, mixed, in the second."""
    outcome = Outcome(method.open(roster, model).settled())
    with traced() as (hand_on, look):
        for round in range(2):
            exchange(outcome, method, engine, Cohort.everyone(roster, model, round), JOB.training)
    return hand_on, look


def test_simulated() -> None:
    method, model, roster = JOB.built()
    hand_on, _ = walked(Simulator(method, silos(), model, JOB.training, JOB.seed), method, roster, model)
    assert hand_on == listed("Simulated")
    assert len(hand_on) <= MOST["Simulated"]


def test_deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    method, model, roster = JOB.built()
    engine = Remote("run", JOB, method, model, flower(settle(tmp_path), monkeypatch))
    hand_on, look = walked(engine, method, roster, model)
    assert hand_on == listed("Deployed")
    assert look == listed("Looked at")
    assert len(hand_on) <= MOST["Deployed"]


def flower(sides: dict[str, SiloSide], monkeypatch: pytest.MonkeyPatch) -> Transport:
    """Flower's messages to the app of each silo, all in this process."""
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from coterie.deploy.flower import client_app
    from coterie.deploy.flower.grid import GridTransport

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)
    nodes = {name: number for number, name in enumerate(NAMES, 1)}
    for name, side in sides.items():
        (side.folder / SOURCE).parent.mkdir(exist_ok=True)
        source = {"path": str(side.folder / "data.npz"), "device": "cpu"}
        (side.folder / SOURCE).write_text(json.dumps(source))
        (side.folder / "settings.json").write_text(json.dumps({"name": name, "host": "127.0.0.1", "port": 9443}))

    class Grid:
        def __init__(self) -> None:
            self.replies = dict[str, Message]()

        def get_node_ids(self) -> list[int]:
            return list(nodes.values())

        def push_messages(self, messages: list[Message]) -> list[str]:
            for message in messages:
                number = f"message-{len(self.replies)}"
                message.metadata.__dict__["_message_id"] = number
                monkeypatch.setenv(SILO, str(sides[NAMES[message.metadata.dst_node_id - 1]].folder))
                self.replies[number] = client_app.handle(message, Context(1, 2, {}, RecordDict(), {}))
            return list(self.replies)[-len(messages) :]

        def pull_messages(self, numbers: list[str]) -> list[Message]:
            return [self.replies[number] for number in numbers]

    return GridTransport(Grid(), lambda: nodes)
