"""A question waits for its answer, and nothing is lost to one who asked and is gone."""

import asyncio
from importlib import import_module
from inspect import getsource
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
from coterie.deploy.flower import long_poll, supernode
from coterie.deploy.flower.long_poll import LongPoll, Messages, hold

SILO = [(b"flwr-public-key", b"north")]
RUN = [(b"flwr-task-token", b"run")]


class Link:
    """An app with a message for each side, as a SuperLink has; `asks` counts how often it was asked for one."""

    def __init__(self) -> None:
        self.there = dict[str, bytes]()
        self.asks = list[str]()
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        path = scope["path"]
        self.asks.append(path)
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        content = self.there.pop(path, b"") if path.endswith("pull-messages") else b""
        await send({"type": "http.response.body", "body": content})


class Caller:
    """Calls an app; `leave` hangs up."""

    def __init__(self, app: LongPoll) -> None:
        self.app, self.left, self.got = app, asyncio.Event(), list[Any]()

    def ask(self, path: str, headers: list[tuple[bytes, bytes]]) -> "asyncio.Task[None]":
        parts = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            if parts:
                return parts.pop()
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.got.append(message)

        return asyncio.ensure_future(
            self.app({"type": "http", "path": path, "headers": headers, "state": {}}, receive, send)
        )


async def until(true: Any) -> None:
    while not true():
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here ends because its time is over."""
    monkeypatch.setattr(long_poll, "HOLD", 3600.0)


PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"
RUN_PULL, RUN_PUSH = "/v1/runtime/pull-messages", "/v1/runtime/push-messages"


@pytest.mark.parametrize(
    ("pull", "asks", "their_push", "their_pull", "other"),
    [(PULL, SILO, RUN_PUSH, RUN_PULL, RUN), (RUN_PULL, RUN, PUSH, PULL, SILO)],
)
def test_who_asks_is_answered_once_the_other_side_has_pushed_all(
    pull: str, asks: Any, their_push: str, their_pull: str, other: Any
) -> None:
    async def play() -> None:
        link = Link()
        app = LongPoll(link, Messages())
        first, second = Caller(app), Caller(app)
        question = first.ask(pull, asks)
        await until(lambda: link.asks == [pull])
        await second.ask(their_push, other)
        link.there[pull] = b"message"
        assert link.asks == [pull, their_push] and not first.got  # what is in the message is still on its way
        waits = second.ask(their_pull, other)
        await question
        assert [m.get("body") for m in first.got] == [None, b"message"]
        assert link.asks.count(pull) == 2
        waits.cancel()

    asyncio.run(play())


def test_a_message_is_not_lost_to_a_silo_that_is_gone() -> None:
    async def play() -> None:
        link, board = Link(), Messages()
        gone = Caller(LongPoll(link, board))
        question = gone.ask(PULL, SILO)
        await until(lambda: link.asks)
        link.there[PULL] = b"message"
        gone.left.set()
        await question
        board.sides["fleet"].came()
        assert link.there and not gone.got
        back = Caller(LongPoll(link, board))
        await back.ask(PULL, SILO)
        assert back.got[-1]["body"] == b"message"

    asyncio.run(play())


def test_a_caller_that_is_gone_before_its_question_is_whole_is_not_answered() -> None:
    async def play() -> None:
        link, got = Link(), list[Any]()
        parts = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"ha", "more_body": True}]

        async def receive() -> Any:
            return parts.pop()

        async def send(message: Any) -> None:
            got.append(message)

        scope = {"type": "http", "path": PULL, "headers": SILO, "state": {}}
        await LongPoll(link, Messages())(scope, receive, send)
        assert not link.asks and not got

    asyncio.run(play())


def test_a_key_that_is_locked_out_while_its_question_waits_is_refused() -> None:
    async def play() -> None:
        link, board = Link(), Messages()
        silo = Caller(LongPoll(link, board))
        question = silo.ask(PULL, SILO)
        await until(lambda: link.asks)
        link.status = 401  # the app authenticates each time that it is asked
        board.sides["fleet"].came()
        await question
        assert silo.got[0]["status"] == 401

    asyncio.run(play())


def test_when_its_time_is_over_a_question_ends_and_the_next_finds_what_brought_no_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as an error about a node that went away."""
    monkeypatch.setattr(long_poll, "HOLD", 0.0)

    async def play() -> None:
        link = Link()
        run = Caller(LongPoll(link, Messages()))
        await run.ask(RUN_PULL, RUN)
        link.there[RUN_PULL] = b"north went away"
        await run.ask(RUN_PULL, RUN)
        assert [each.get("body") for each in run.got] == [None, b"", None, b"north went away"]
        assert link.asks == [RUN_PULL] * 2

    asyncio.run(play())


def test_a_call_that_was_refused_brings_no_news() -> None:
    async def play() -> None:
        link, board = Link(), Messages()
        link.status = 401
        await Caller(LongPoll(link, board)).ask(PUSH, SILO)
        assert not board.pushed

    asyncio.run(play())


def test_a_silos_message_is_worked_on_and_its_reply_sent_at_once() -> None:
    async def play() -> None:
        tasks, link = supernode.Tasks(), Link()
        executor = Caller(LongPoll(link, tasks))
        question = executor.ask("/v1/runtime/acquire-task", [])
        await until(lambda: link.asks)
        assert tasks.pulled(lambda: None)() is None and not executor.got
        link.status = 201  # anything that says something
        assert tasks.pulled(lambda: 7)() == 7
        await question
        assert executor.got[0]["status"] == 201
        link.status = 200
        for path in ("push-messages", "push-object"):
            assert not tasks.came.is_set()
            await Caller(LongPoll(link, tasks)).ask(f"/v1/runtime/{path}", RUN)
            assert tasks.came.is_set()
            tasks.came.clear()

    asyncio.run(play())


def test_flowers_programs_ask_at_the_paths_that_are_held() -> None:
    """And say that there is nothing without a word."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from flwr.proto.runtime_pb2 import AcquireTaskResponse, PullAppMessagesResponse

    for kind in (PullMessagesResponse, AcquireTaskResponse, PullAppMessagesResponse):
        assert kind().SerializeToString() == b""
    constants = import_module("flwr.supercore.constant")
    names = {constants.FLEET_HTTP_PUBLIC_KEY_HEADER, constants.TASK_TOKEN_HEADER}
    assert {name.encode() for name in names} == {*long_poll.CALLER}
    fleet = getsource(import_module("flwr.superlink.routers.fleet.router"))
    runtime = getsource(import_module("flwr.supercore.routers.runtime.router"))
    for path in ("/pull-messages", "/push-messages"):
        assert f'"{path}"' in fleet and f'"{path}"' in runtime
    assert '"/acquire-task"' in runtime and '"/push-object"' in runtime
    assert "_pull_and_store_message(" in getsource(
        import_module("flwr.supernode.start_client_internal").start_client_internal
    )


def test_the_apps_of_flowers_programs_hold_questions() -> None:
    added = list[Any]()
    served = SimpleNamespace(create_app=lambda: SimpleNamespace(add_middleware=lambda *a, **n: added.append((a, n))))
    board = Messages()
    hold(served, board)
    served.create_app()
    assert added == [((LongPoll,), {"board": board})]
