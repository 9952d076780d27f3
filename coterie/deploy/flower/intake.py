"""How many bytes a silo takes from its coordinator: what one request may have by its policy, counted as they arrive.

A silo judges a request once it has read it whole. Whoever stands where the coordinator was could send pieces without
end before that: here they are counted while Flower's SuperNode pulls them, and it drops the message and says so.
"""

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, Protocol

import httpx

PIECE = 16 << 20  # bytes of one object; Flower cuts arrays into pieces of 5 MiB
LIST = 4 << 20  # bytes of the list of a message's objects
OBJECTS = 20_000  # in one message
OTHER = 64 << 10  # bytes of any other answer; the stub that a run ships has some 2 kB
OBJECT, HEARTBEAT = "/v1/fleet/pull-object", "/v1/fleet/send-node-heartbeat"
LIMITS = {OBJECT: PIECE, "/v1/fleet/pull-messages": LIST, "/v1/fleet/push-messages": LIST}


class TooMuch(Exception):
    """More than a silo takes, and of what."""


class Receives(Protocol):
    """Flower's call for the next message and the tree of its objects; None: there is none."""

    def __call__(self) -> tuple[Any, Any] | None: ...


class Intake:
    """Counts what one message brings: a SuperNode takes the next when that is answered."""

    def __init__(self, allowed: Callable[[], int]) -> None:
        self.allowed, self.lock, self.turn = allowed, Lock(), 0
        self.begin()

    def begin(self) -> None:
        """The next message is asked for."""
        allowed = self.allowed()
        with self.lock:
            self.turn, self.left, self.why = self.turn + 1, allowed, ""

    def watch(self, response: httpx.Response) -> None:
        """Have an answer of the coordinator, of which nothing is read yet, counted while it is."""
        path, turn = response.url.path, self.turn
        if response.headers.get("content-encoding", "identity") != "identity":
            raise self._refused(path, turn, f"{path} answers with compressed bytes, which nobody asked for")
        response.stream = Counted(response.stream, self._count(path, turn))

    def _count(self, path: str, turn: int) -> Callable[[int], None]:
        """Counts one answer, which may still come when the message it was for is refused and the next one asked for."""
        most = LIMITS.get(path, OTHER)
        left = most

        def count(size: int) -> None:
            nonlocal left
            left -= size
            if left < 0:
                raise self._refused(path, turn, f"{path} answers with over {most} bytes")
            if path != OBJECT:
                return
            with self.lock:
                self.left -= size if turn == self.turn else 0
                over = self.left < 0 or turn != self.turn
            if over:
                why = "a request has more bytes than largest_download in silo.toml allows"
                raise self._refused(path, turn, why)

        return count

    def check_tree(self, tree: Any) -> None:
        """Refuse a message of too many objects before the first of them is pulled."""
        waiting, count = [tree], 0
        while waiting:
            count += 1
            waiting.extend(waiting.pop().children)
            if count > OBJECTS:
                raise self._refused("", self.turn, f"a request of over {OBJECTS} pieces")

    def _refused(self, path: str, turn: int, why: str) -> TooMuch:
        with self.lock:
            if path != HEARTBEAT and turn == self.turn:  # those have a thread of their own and are part of no message
                self.why = why
        return TooMuch(why)


class Counted(httpx.SyncByteStream):
    """The bytes of an answer, each part counted before it is kept."""

    def __init__(self, stream: Any, count: Callable[[int], None]) -> None:
        self.stream, self.count = stream, count

    def __iter__(self) -> Iterator[bytes]:
        for part in self.stream:
            self.count(len(part))
            yield part

    def close(self) -> None:
        self.stream.close()


def counted(client: type[Any], intake: Intake) -> type[Any]:
    """Flower's client of the coordinator, all of whose answers are counted."""

    class Counting(client):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self._client.follow_redirects = False  # to nobody else
            self._client.headers["accept-encoding"] = "identity"  # a few bytes could be a gigabyte
            self._client.event_hooks = {"response": [intake.watch]}

    return Counting


def limited(
    pull: Callable[..., Any], intake: Intake, refuse: Callable[[Any, Any, Any, str], None], say: Callable[[str], None]
) -> Callable[..., Any]:
    """Flower's step that takes one message: of one that is too large it hands on a refusal in place of a task."""

    def pulled(*, receive: Receives, state: Any, object_store: Any, **named: Any) -> Any:
        message = None

        def received() -> tuple[Any, Any] | None:
            nonlocal message
            found = receive()
            if found is not None:
                message, tree = found
                intake.check_tree(tree)
            return found

        intake.begin()
        try:
            run = pull(receive=received, state=state, object_store=object_store, **named)
        except TooMuch:
            run = None
        if not intake.why:
            return run
        say(f"refused: {intake.why}")
        if message is None:
            return None
        refuse(message, state, object_store, intake.why)
        return message.metadata.run_id

    return pulled
