"""Requests and answers as Flower's messages and back."""

from dataclasses import replace

import pytest
import safetensors.torch
import torch

pytest.importorskip("flwr")
from flwr.app import Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from coterie.codec import decode, encode
from coterie.deploy.flower import grid as grid_module
from coterie.deploy.flower.grid import GridTransport, answer_of, packed, reply, request_of, unpacked
from coterie.deploy.messages import Answer, Lost, Request
from coterie.engine.exchange import Failure
from coterie.wire import Predictor

BODY = safetensors.torch.save(
    {
        "large": torch.arange(600_000, dtype=torch.float32).reshape(2, -1),
        "small": torch.tensor([[1.5, -2.0]], dtype=torch.float64),
        "picks": torch.tensor([[0, -1]]),
        "flag": torch.tensor([True]),
        "none": torch.zeros(1, 0),
    }
)


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes messages only within a run."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)


class Grid:
    """Flower's grid, with silos that answer at once or not at all."""

    def __init__(self, online: dict[int, Answer | int | None]) -> None:
        self.online, self.sent, self.reason = online, dict[str, Message](), "why"

    def get_node_ids(self) -> list[int]:
        return list(self.online)

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = [f"message-{i}" for i in range(len(messages))]
        for name, message in zip(ids, messages, strict=True):
            message.metadata.__dict__["_message_id"] = name
            self.sent[name] = message
        return ids

    def pull_messages(self, ids: list[str]) -> list[Message]:
        found = []
        for name in ids:
            told = self.online[self.sent[name].metadata.dst_node_id]
            if isinstance(told, Answer):
                found.append(reply(self.sent[name], told))
            elif told is not None:
                found.append(Message(Error(code=told, reason=self.reason), reply_to=self.sent[name]))
        return list(reversed(found))  # in no particular order


def test_bytes_survive_the_trip() -> None:
    assert unpacked(packed(BODY)) == BODY
    assert unpacked(packed(b"")) == b""


def test_a_model_that_several_silos_are_sent_is_one_object_of_flowers() -> None:
    models = torch.arange(1_200_000, dtype=torch.float32).reshape(4, -1)
    sent = [{"bank": models[:3].clone(), "p": torch.ones(3)}, {"bank": models[1:].clone(), "p": torch.zeros(3)}]
    one, other = ({each.object_id for each in packed(safetensors.torch.save(body)).values()} for body in sent)
    assert len(one) == len(other) == 5 and len(one & other) == 3  # the header and two models


def test_what_is_sent_to_all_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[bytes]()
    monkeypatch.setattr(grid_module, "packed", lambda body: calls.append(body) or packed(body))
    nodes = {"a": 1, "b": 2, "c": 3}
    requests = {name: Request("declare", name, "run", 0, body=BODY) for name in nodes}
    GridTransport(Grid(dict.fromkeys(nodes.values(), 5)), lambda: nodes).exchange(requests, timeout=0.5)
    assert calls == [BODY]


def test_a_record_is_written_once_and_read_once_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    for name in ("save", "load"):
        each = getattr(safetensors.torch, name)
        monkeypatch.setattr(
            safetensors.torch, name, lambda *given, call=each, name=name: calls.append(name) or call(*given)
        )
    grid, sent = Grid({1: Answer(BODY)}), Predictor(models=torch.ones(1, 300_000))
    asked = Request("measure", "a", "run", 0, body=encode(sent))
    GridTransport(grid, lambda: {"a": 1}).exchange({"a": asked}, timeout=0.5)
    arrived = request_of(grid.sent["message-0"])
    assert arrived.digest() == asked.digest()
    assert torch.equal(decode(Predictor, arrived.body, rows=1).models, sent.models)
    assert calls == ["save", "load"]


def test_each_silo_gets_its_answer_whoever_replies_first() -> None:
    grid = Grid({1: Answer(BODY), 2: Answer(refusal="not today"), 3: 5, 4: 8, 5: None})
    nodes = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}
    requests = {name: Request("declare", name, "run", 0, body=BODY) for name in [*nodes, "g"]}
    found = GridTransport(grid, lambda: nodes).exchange(requests, timeout=0.5)
    assert isinstance(found["a"], Answer) and found["a"].body == BODY
    assert found["b"] == Answer(refusal="not today")
    assert found["c"] == Failure("went away while it was asked")
    assert isinstance(found["d"], Lost) and isinstance(found["e"], Lost)
    assert found["f"] == found["g"] == Failure("not connected")
    assert request_of(grid.sent["message-0"]).silo == "a"


def test_a_small_body_is_no_object_of_its_own() -> None:
    """Flower makes a call for each object, with a head of a kilobyte: a message, its records, its only record."""
    small = safetensors.torch.save({"w": torch.ones(1, 600)})
    grid = Grid({1: Answer(small)})
    asked = Request("declare", "a", "run", 0, body=small)
    found = GridTransport(grid, lambda: {"a": 1}).exchange({"a": asked}, timeout=0.5)
    assert isinstance(found["a"], Answer) and found["a"].body == small
    assert [*grid.sent["message-0"].content] == ["request"]
    assert [*reply(grid.sent["message-0"], Answer(small)).content] == ["answer"]


@pytest.mark.parametrize("body", [b"", safetensors.torch.save({"w": torch.ones(2)}), BODY])
def test_a_request_is_the_same_question_when_it_arrives(body: bytes) -> None:
    grid = Grid({1: Answer(BODY)})
    asked = Request("declare", "a", "run", 0, body=body)
    GridTransport(grid, lambda: {"a": 1}).exchange({"a": asked}, timeout=0.5)
    assert request_of(grid.sent["message-0"]).digest() == asked.digest()
    assert replace(asked, body=safetensors.torch.save({"other": torch.ones(1)})).digest() != asked.digest()


def test_an_answer_without_its_parts_is_a_failure() -> None:
    question = Message(content=RecordDict(), message_type="query", dst_node_id=1)
    question.metadata.__dict__["_message_id"] = "m"
    assert isinstance(answer_of(Message(content=RecordDict(), reply_to=question)), Failure)


FORGED = "no\n2026-01-01 00:00:00 answered train\r\x1b[2J\x1b]0;title\x07 \u202egnp.exe\u2066 \x9b31m"


@pytest.mark.parametrize("told", [Answer(refusal=FORGED), 8], ids=["refusal", "Flower's error"])
def test_what_a_silo_says_reaches_no_terminal_with_commands_in_it(told: Answer | int) -> None:
    grid = Grid({1: told})
    grid.reason = FORGED
    found = GridTransport(grid, lambda: {"a": 1}).exchange({"a": Request("declare", "a", "run", 0)}, timeout=0.5)["a"]
    said = found.refusal if isinstance(found, Answer) else found.reason
    assert "answered train" in said and said.isprintable()


def test_a_refusal_of_five_megabytes_is_cut_at_the_door() -> None:
    grid = Grid({1: Answer(BODY)})
    GridTransport(grid, lambda: {"a": 1}).exchange({"a": Request("declare", "a", "run", 0)}, timeout=0.5)
    message = reply(grid.sent["message-0"], Answer(BODY))
    message.content["answer"]["refusal"] = "x" * 5_000_000  # as a rogue's own code would
    assert answer_of(message) == Answer(refusal="x" * 500 + "…")


def test_an_answer_that_is_too_long_is_named_and_every_node_is_granted_what_it_may_send() -> None:
    granted = list[dict[int, int]]()
    grid = Grid({1: Answer(bytes(900), to="x"), 2: Answer(bytes(5000), to="x")})
    transport = GridTransport(grid, lambda: {"north": 1, "south": 2}, grant=lambda sizes: granted.append(dict(sizes)))
    asked = {name: Request("train", name, "run", 0, largest=1000) for name in ("north", "south")}
    found = transport.exchange(asked, 5)
    assert isinstance(found["north"], Answer) and granted == [{1: 1000, 2: 1000}]
    assert found["south"] == Failure("its answer has 5000 bytes; such may have 1000")
