"""Long polling: a question for which one of Flower's programs has no answer yet waits for one, and is not asked again.

Flower's programs ask each other in loops with pauses, which were most of a small round and most of its calls.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from coterie.deploy.flower.same_account import App, Receive, Scope, Send, stand_before

HOLD = 3.0  # seconds that a question waits at most, and that Flower's SuperNode would pause
CALLER = (b"flwr-public-key", b"flwr-task-token")  # the headers by which Flower knows a silo, and a run's app


class News:
    """Wakes whoever waits for it, from any thread."""

    def __init__(self) -> None:
        self.waiting = set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    def came(self) -> None:
        """Wake all that wait."""
        for loop, event in [*self.waiting]:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(event.set)

    @contextmanager
    def awaited(self) -> Iterator[asyncio.Event]:
        """Set when news comes from now on."""
        entry = asyncio.get_running_loop(), asyncio.Event()
        self.waiting.add(entry)
        try:
            yield entry[1]
        finally:
            self.waiting.discard(entry)


class Board(Protocol):
    """Knows which questions are held, and what brings news."""

    def asked(self, path: str, caller: bytes) -> News | None:
        """What a question to this path waits for; None: it is not held."""

    def done(self, path: str, caller: bytes) -> None:
        """A call to this path was answered."""


class Messages:
    """At a SuperLink: silos wait for a run's requests, the run for their replies.

    Who has pushed messages pushes what is in them next, and asks for the other side's once all of it is there.
    """

    def __init__(self) -> None:
        self.sides = {"fleet": News(), "runtime": News()}
        self.pushed = set[tuple[str, bytes]]()

    def asked(self, path: str, caller: bytes) -> News | None:
        side, _, what = path.removeprefix("/v1/").partition("/")
        if side not in self.sides or what != "pull-messages":
            return None
        if (side, caller) in self.pushed:
            self.pushed.discard((side, caller))
            for other in self.sides.keys() - {side}:
                self.sides[other].came()
        return self.sides[side]

    def done(self, path: str, caller: bytes) -> None:
        side, _, what = path.removeprefix("/v1/").partition("/")
        if side in self.sides and what == "push-messages":
            self.pushed.add((side, caller))


class LongPoll:
    """Asks the app again, for a call that it answers with nothing, when there is news or its time is over."""

    def __init__(self, app: App, board: Board) -> None:
        self.app, self.board = app, board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path, caller = scope["path"], b"".join(value for name, value in scope["headers"] if name in CALLER)
        news = self.board.asked(path, caller)
        if news is not None:
            return await self.hold(news, scope, receive, send)

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                self.board.done(path, caller)
            await send(message)

        await self.app(scope, receive, noted)

    async def hold(self, news: News, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer once there is something to say; a caller that is gone takes nothing with it."""
        body = await _whole(receive)
        if body is None:
            return
        gone, clock = asyncio.ensure_future(receive()), asyncio.get_running_loop()
        until = clock.time() + HOLD
        try:
            with news.awaited() as came:
                while not gone.done():
                    came.clear()
                    answer = await self.tried(scope, body, gone)
                    if _says_nothing(answer):
                        woken = asyncio.ensure_future(came.wait())
                        left = until - clock.time()
                        await asyncio.wait((woken, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                        woken.cancel()
                        if came.is_set() or gone.done():
                            continue
                    for message in answer:
                        await send(message)
                    return
        finally:
            gone.cancel()

    async def tried(self, scope: Scope, body: bytes, gone: asyncio.Future[Any]) -> list[Any]:
        """What the app sends for a call, this time."""
        answer, parts = list[Any](), [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return parts.pop() if parts else await asyncio.shield(gone)

        async def send(message: Any) -> None:
            answer.append(message)

        await self.app({**scope, "state": dict(scope.get("state", {}))}, receive, send)
        return answer


def hold(served: Any, board: Board) -> None:
    """Have the app that a module of Flower's makes hold questions."""
    stand_before(served, LongPoll, board=board)


async def _whole(receive: Receive) -> bytes | None:
    """The body of a call; None: its caller went away before its end."""
    parts = list[bytes]()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _says_nothing(answer: list[Any]) -> bool:
    """Whether an answer is a success without content, as Flower's are for what is not there yet."""
    content = b"".join(message.get("body", b"") for message in answer)
    return not content and any(message.get("status") == 200 for message in answer)
