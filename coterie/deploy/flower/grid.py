"""The transport between real silos: Flower's grid on the server, Flower's messages on both sides."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from coterie.deploy.flower.commands import REFUSED
from coterie.deploy.flower.pace import Pace
from coterie.deploy.messages import LONGEST_REFUSAL, Answer, Lost, Request, request
from coterie.engine.exchange import Failure
from coterie.errors import BadInput, plain

POLL = 1.0  # seconds between two looks for replies, at most
SMALL = 64 << 10  # bytes up to which a body travels in its message's head: each object of Flower's is a call by itself
LARGE = 1 << 20  # bytes above which the rows of a tensor travel apart: Flower sends equal ones once
GONE = 5  # Flower's error code for a node that went away
ASK_AGAIN = {3, 4, 8}  # message or reply unavailable, the training process died


@dataclass(eq=False)
class GridTransport:
    """Requests to silos by their registered nodes."""

    grid: Any
    nodes: Callable[[], Mapping[str, int]]
    report: Callable[[list[str]], None] = lambda due: None  # whose answers are due
    grant: Callable[[Mapping[int, int]], None] = lambda sizes: None  # how many bytes each node may push for its own

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        """Send all, then collect until the last reply or the timeout."""
        nodes, online = self.nodes(), set(self.grid.get_node_ids())
        found: dict[str, Answer | Failure] = {}
        reached = list[str]()
        for name in requests:
            if nodes.get(name) in online:
                reached.append(name)
            else:
                found[name] = Failure("not connected")
        if not reached:
            return found
        pieces = {body: packed(body) for body in {requests[name].body for name in reached} if len(body) > SMALL}
        sent = [_message(requests[name], pieces, nodes[name], timeout) for name in reached]
        self.grant({nodes[name]: requests[name].largest for name in reached})
        waiting = dict(zip(self.grid.push_messages(sent), reached, strict=True))
        until, pace = time.monotonic() + timeout, Pace()
        self.report(list(waiting.values()))
        while waiting and time.monotonic() < until:
            before = len(waiting)
            for reply in self.grid.pull_messages(list(waiting)):
                # An error about a node that went away does not come from that node: only this shows whose it is.
                name = waiting.pop(reply.metadata.reply_to_message_id, None)
                if name is not None:
                    found[name] = _judged(answer_of(reply), requests[name].largest)
            if len(waiting) < before:
                self.report(list(waiting.values()))
            else:
                pace.sleep(POLL)
        if waiting:
            self.report([])
        return found | {name: Lost(f"no answer within {timeout:g} s") for name in waiting.values()}


def _message(request: Request, pieces: Mapping[bytes, ArrayRecord], node: int, timeout: float) -> Message:
    content = enclosed("request", {"head": request.head()}, request.body, pieces.get(request.body))
    return Message(content=content, message_type="query", dst_node_id=node, ttl=timeout)


def enclosed(name: str, head: Mapping[str, str], body: bytes, pieces: ArrayRecord | None = None) -> RecordDict:
    """A message's content of this name: a small body in its head, a large one in pieces."""
    if len(body) <= SMALL:
        return RecordDict({name: ConfigRecord({**head, "body": body})})
    return RecordDict({name: ConfigRecord({**head}), "body": packed(body) if pieces is None else pieces})


def body_of(content: RecordDict, name: str) -> bytes:
    """The body of a message's content."""
    small = content[name].get("body")
    return small if isinstance(small, bytes) else unpacked(content["body"])


def _judged(answer: Answer | Failure, largest: int) -> Answer | Failure:
    if isinstance(answer, Answer) and len(answer.body) > largest:
        return Failure(f"its answer has {len(answer.body)} bytes; such may have {largest}")
    return answer


def request_of(message: Message) -> Request:
    """The request in a message, at the silo."""
    try:
        head, body = str(message.content["request"]["head"]), body_of(message.content, "request")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput("a message arrived that holds no request") from None
    return request(head, body)


def reply(message: Message, answer: Answer) -> Message:
    """The silo's answer as a message."""
    content = enclosed("answer", {"refusal": answer.refusal, "to": answer.to}, answer.body)
    return Message(content=content, reply_to=message)


def answer_of(message: Message) -> Answer | Failure:
    """A silo's answer, or the error that Flower sends instead of it."""
    if message.has_error():
        error = message.error
        if error.code == GONE:
            return Failure("went away while it was asked")
        if error.code == REFUSED:
            return Answer(refusal=str(error.reason))
        kind = Lost if error.code in ASK_AGAIN else Failure
        return kind(plain(f"its process failed (Flower's code {error.code}: {error.reason})", LONGEST_REFUSAL))
    try:
        head = message.content["answer"]
        refusal = str(head["refusal"])
        return Answer(body_of(message.content, "answer") if not refusal else b"", refusal, str(head["to"]))
    except (KeyError, ValueError, TypeError, AttributeError, BadInput) as error:
        return Failure(plain(f"its answer arrived damaged: {error}", LONGEST_REFUSAL))


def packed(body: bytes) -> ArrayRecord:
    """A record's bytes as one ArrayRecord, in pieces."""
    cuts = _cuts(body)
    pieces = [body[start:end] for start, end in pairwise(cuts)]
    return ArrayRecord({f"{i:06d}": Array("uint8", (len(piece),), "bytes", piece) for i, piece in enumerate(pieces)})


def _cuts(body: bytes) -> list[int]:
    """Where to cut a record's bytes: around the rows of a large tensor, for Flower sends equal pieces once."""
    start = 8 + int.from_bytes(body[:8], "little")  # of the tensors, as safetensors lays them out
    cuts = {0, len(body)}
    for about in json.loads(body[8:start] or "{}").values():
        shape, (first, last) = about["shape"], about["data_offsets"]
        if len(shape) >= 2 and last - first > LARGE:
            cuts |= {*range(start + first, start + last, (last - first) // shape[0]), start + last}
    return sorted(cuts)


def unpacked(record: Any) -> bytes:
    """The bytes of a record again."""
    if not isinstance(record, ArrayRecord):
        raise BadInput("no arrays")
    return b"".join(record[name].data for name in sorted(record))
