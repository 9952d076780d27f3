"""A coordinator, or who stands in its place, fills neither memory nor disk of a silo: what it sends is counted."""

import importlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fab_pb2 import Fab as FabProto
from flwr.proto.fab_pb2 import GetFabResponse
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    PullObjectRequest,
    PullObjectResponse,
    PushObjectResponse,
)
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.proto.run_pb2 import Run as RunProto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection as connection
from flwr.supernode.nodestate import NodeStateFactory

from coterie.deploy.flower import commands, intake, supernode
from coterie.deploy.flower.grid import answer_of
from coterie.deploy.home import LARGEST_DOWNLOAD, largest_download
from coterie.deploy.messages import Answer

RUN, NODE, PART = 7, 5, 1 << 16
LARGEST = 4 * PART
STUB = sha256(b"").hexdigest()


class Coordinator:
    """Answers Flower's calls as a SuperLink does, but for what a test has it send in place of one."""

    def __init__(self) -> None:
        self.calls, self.waiting, self.objects = list[str](), list[Message](), dict[str, bytes]()
        self.replies, self.sent = list[Message](), 0
        self.instead = dict[str, Any]()  # by call: the bytes of its answer, part by part
        self.headers = dict[str, str]()

    def ask(self, size: int = 10) -> None:
        content = RecordDict({"request": ConfigRecord({"body": bytes(size)})})
        message = Message(content=content, message_type="query", dst_node_id=NODE)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.objects |= {key: each.deflate() for key, each in get_all_nested_objects(message).items()}
        self.waiting.append(message)

    def answer(self, request: httpx.Request) -> httpx.Response:
        call, body = request.url.path.removeprefix("/v1/fleet/"), request.read()
        self.calls.append(call)
        if call in self.instead:
            return httpx.Response(200, headers=self.headers, stream=Endless(self, self.instead.pop(call)))
        made = getattr(self, call.replace("-", "_"), None)
        content = b"" if made is None else made(body).SerializeToString()
        return httpx.Response(200, stream=httpx.ByteStream(content))

    def activate_node(self, body: bytes) -> Any:
        return ActivateNodeResponse(node_id=NODE)

    def send_node_heartbeat(self, body: bytes) -> Any:
        return SendNodeHeartbeatResponse(success=True)

    def pull_messages(self, body: bytes) -> Any:
        if not self.waiting:
            return PullMessagesResponse()
        message = self.waiting.pop(0)
        bare = message_to_proto(remove_content_from_message(message))
        return PullMessagesResponse(messages_list=[bare], message_object_trees=[get_object_tree(message)])

    def get_run(self, body: bytes) -> Any:
        return GetRunResponse(run=RunProto(run_id=RUN, fab_hash=STUB))

    def get_fab(self, body: bytes) -> Any:
        return GetFabResponse(fab=FabProto(hash_str=STUB, content=b""))

    def pull_object(self, body: bytes) -> Any:
        asked = PullObjectRequest.FromString(body)
        return PullObjectResponse(
            object_found=True, object_available=True, object_content=self.objects[asked.object_id]
        )

    def push_messages(self, body: bytes) -> Any:
        pushed = PushMessagesRequest.FromString(body)
        self.replies += [message_from_proto(each) for each in pushed.messages_list]
        return PushMessagesResponse(session_id="s")

    def push_object(self, body: bytes) -> Any:
        return PushObjectResponse(stored=True)


class Endless(httpx.SyncByteStream):
    """Bytes that a coordinator sends as long as they are taken."""

    def __init__(self, coordinator: Coordinator, parts: Iterator[bytes]) -> None:
        self.coordinator, self.parts = coordinator, parts

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            self.coordinator.sent += len(part)
            assert self.coordinator.sent < 1 << 26, "all of it is taken"
            yield part


def endless() -> Iterator[bytes]:
    while True:
        yield bytes(PART)


class Silo:
    """Flower's SuperNode with our door, as far as it takes messages; its own process answers none."""

    def __init__(self, folder: Path, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "silo.toml").write_text(f"largest_download = {LARGEST}\n")
        self.folder, self.coordinator = folder, coordinator
        self.loop = importlib.import_module("flwr.supernode.start_client_internal")
        for module, name in ((connection, "FleetHttpClient"), (self.loop, "_pull_and_store_message")):
            monkeypatch.setattr(module, name, getattr(module, name))
        monkeypatch.setattr(self.loop, "get_fused_config_from_fab", lambda *given: {})
        transport = httpx.MockTransport(coordinator.answer)
        client = httpx.Client
        monkeypatch.setattr(httpx, "Client", lambda **named: client(**named, transport=transport))
        supernode.keep_door(self.loop, folder)
        stores = ObjectStoreFactory()
        self.state, self.store = NodeStateFactory(objectstore_factory=stores).state(), stores.store()
        self.state.set_node_id(NODE)

    def turns(self, count: int) -> list[int | None]:
        """What it found at each of so many looks for a message; what it has to say it sends."""
        found = list[int | None]()
        with connection.http_request_response("127.0.0.1:1", True) as conn:
            _, receive, send, get_run, get_fab, pull_object, push_object, confirm = conn
            for _ in range(count):
                found.append(
                    self.loop._pull_and_store_message(
                        state=self.state,
                        object_store=self.store,
                        node_config={},
                        receive=receive,
                        get_run=get_run,
                        get_fab=get_fab,
                        pull_object=pull_object,
                        confirm_message_received=confirm,
                        trusted_entities=None,
                    )
                )
                if any(each.message.metadata.reply_to_message_id for each in self.state.msg_store.values()):
                    self.loop._push_messages(
                        state=self.state, object_store=self.store, send=send, push_object=push_object
                    )
        return found

    def events(self) -> str:
        path = self.folder / "events.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    for name, number in (("_task_id", 1), ("_run_id", RUN), ("_node_id", 1)):  # of Flower's, who makes messages
        monkeypatch.setattr(TaskIdentity, name, number)
    return Coordinator()


@pytest.fixture
def silo(tmp_path: Path, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Silo:
    return Silo(tmp_path, coordinator, monkeypatch)


def refusal(coordinator: Coordinator) -> str:
    """What the coordinator's app reads in the only reply."""
    (reply,) = coordinator.replies
    answer = answer_of(reply)
    assert isinstance(answer, Answer)
    return answer.refusal


def test_what_a_coordinator_honestly_sends_is_taken(silo: Silo, coordinator: Coordinator) -> None:
    coordinator.ask(LARGEST // 2)
    assert silo.turns(2) == [RUN, None] and silo.events() == "" and not coordinator.replies
    assert coordinator.calls.count("pull-object") == 3 and "confirm-message-received" in coordinator.calls
    assert silo.state.msg_store and len(silo.store) == 3


def test_an_object_without_end_is_dropped_and_the_next_request_is_taken(silo: Silo, coordinator: Coordinator) -> None:
    coordinator.ask()
    coordinator.ask()
    coordinator.instead["pull-object"] = endless()
    assert silo.turns(2) == [RUN, RUN]
    assert coordinator.sent <= LARGEST + PART  # and no more was read
    assert "refused: a request has more bytes than largest_download in silo.toml allows\n" in silo.events()
    assert refusal(coordinator) == "a request has more bytes than largest_download in silo.toml allows"
    assert coordinator.calls.count("confirm-message-received") == 1
    assert len(silo.state.msg_store) == 1 and len(silo.store) == 3  # of the second alone


def test_many_small_objects_count_together(
    silo: Silo, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.ask(LARGEST + 1)
    assert silo.turns(1) == [RUN] and "largest_download" in refusal(coordinator) and len(silo.store) == 0
    monkeypatch.setattr(intake, "OBJECTS", 2)
    coordinator.replies.clear()
    coordinator.ask()
    pulled = coordinator.calls.count("pull-object")
    assert silo.turns(1) == [RUN] and refusal(coordinator) == "a request of over 2 pieces"
    assert coordinator.calls.count("pull-object") == pulled  # none of them


def test_one_object_has_an_end_whatever_a_request_may_have(silo: Silo, coordinator: Coordinator) -> None:
    (silo.folder / "silo.toml").write_text("")
    coordinator.ask()
    coordinator.instead["pull-object"] = endless()
    assert silo.turns(1) == [RUN]
    assert coordinator.sent <= intake.PIECE + PART
    assert f"/v1/fleet/pull-object answers with over {intake.PIECE} bytes" in refusal(coordinator)


@pytest.mark.parametrize("call", ["get-run", "get-fab", "pull-messages", "confirm-message-received"])
def test_no_other_answer_is_without_end(silo: Silo, coordinator: Coordinator, call: str) -> None:
    coordinator.ask()
    coordinator.ask()
    coordinator.instead[call] = endless()
    most = intake.LIST if call == "pull-messages" else intake.OTHER
    known = call != "pull-messages"  # what it would have been about
    assert silo.turns(2) == [RUN if known else None, RUN]
    assert coordinator.sent <= most + PART
    assert f"refused: /v1/fleet/{call} answers with over {most} bytes\n" in silo.events()
    assert len(coordinator.replies) == known


def test_a_few_bytes_that_would_be_many_are_refused(silo: Silo, coordinator: Coordinator) -> None:
    coordinator.ask()
    coordinator.instead["pull-object"], coordinator.headers = endless(), {"content-encoding": "gzip"}
    assert silo.turns(1) == [RUN] and coordinator.sent == 0
    assert "compressed bytes" in refusal(coordinator)


def test_a_heartbeat_that_is_too_long_is_no_requests_fault(tmp_path: Path) -> None:
    door = intake.Intake(lambda: LARGEST)
    for path, why in ((intake.HEARTBEAT, ""), ("/v1/fleet/get-run", "over")):
        response = httpx.Response(200, stream=Endless(Coordinator(), endless()))
        response.request = httpx.Request("POST", f"https://fl.example.org{path}")
        door.watch(response)
        with pytest.raises(intake.TooMuch):
            response.read()
        assert why in door.why and bool(why) == bool(door.why)


def test_what_still_comes_of_a_request_that_was_dropped_is_no_fault_of_the_next() -> None:
    door = intake.Intake(lambda: LARGEST)
    late = httpx.Response(200, stream=Endless(Coordinator(), endless()))
    late.request = httpx.Request("POST", f"https://fl.example.org{intake.OBJECT}")
    door.watch(late)
    door.begin()
    with pytest.raises(intake.TooMuch):
        late.read()
    assert door.why == "" and door.left == LARGEST


def test_the_stub_that_a_run_ships_is_far_smaller_than_what_is_taken() -> None:
    assert sum(map(len, commands.STUB_FILES.values())) * 4 < intake.OTHER


def test_a_silo_toml_that_cannot_be_read_still_ends_a_request(tmp_path: Path) -> None:
    for text in (None, "largest_download = [", "largest_download = 0", 'largest_download = "many"'):
        if text is not None:
            (tmp_path / "silo.toml").write_text(text)
        assert largest_download(tmp_path) == LARGEST_DOWNLOAD
    (tmp_path / "silo.toml").write_text("largest_download = 5")
    assert largest_download(tmp_path) == 5


def test_a_silo_follows_its_coordinator_to_no_other(silo: Silo, coordinator: Coordinator) -> None:
    asked = list[str]()

    def elsewhere(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(
            307, headers={"location": "https://other.example.org/a%0Aline"}, stream=httpx.ByteStream(b"")
        )

    client = connection.FleetHttpClient("https://fl.example.org", interceptors=[])
    client._client._transport = httpx.MockTransport(elsewhere)
    with pytest.raises(httpx.HTTPStatusError):
        client.GetRun(GetRunRequest(run_id=RUN))
    assert asked == ["fl.example.org"]
