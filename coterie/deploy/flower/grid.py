"""The transport between real silos: Flower's grid on the server, Flower's messages on both sides."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from coterie.data.npz import from_bytes
from coterie.deploy.messages import LONGEST_REFUSAL, Answer, Lost, Request, request
from coterie.engine.exchange import Failure
from coterie.errors import BadInput, plain

POLL = 0.3  # seconds between two looks for replies
LARGE = 1 << 20  # bytes above which the rows of a tensor travel apart: Flower sends equal ones once
GONE = 5  # Flower's error code for a node that went away
ASK_AGAIN = {3, 4, 8}  # message or reply unavailable, the training process died


class GridTransport:
    """Requests to silos by their registered nodes."""

    def __init__(
        self,
        grid: Any,
        nodes: Callable[[], Mapping[str, int]],
        tell: Callable[[list[str]], None] = lambda due: None,
    ) -> None:
        self.grid, self.nodes, self.tell = grid, nodes, tell  # `tell`: whose answers are due

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
        sent = [self._message(requests[name], nodes[name], timeout) for name in reached]
        waiting = dict(zip(self.grid.push_messages(sent), reached, strict=True))
        until = time.monotonic() + timeout
        self.tell(list(waiting.values()))
        while waiting and time.monotonic() < until:
            before = len(waiting)
            for reply in self.grid.pull_messages(list(waiting)):
                # An error about a node that went away does not come from that node: only this says whose it is.
                name = waiting.pop(reply.metadata.reply_to_message_id, None)
                if name is not None:
                    found[name] = answer_of(reply)
            if len(waiting) < before:
                self.tell(list(waiting.values()))
            if waiting:
                time.sleep(POLL)
        if waiting:
            self.tell([])
        return found | {name: Lost(f"no answer within {timeout:g} s") for name in waiting.values()}

    def _message(self, request: Request, node: int, timeout: float) -> Message:
        content = RecordDict({"request": ConfigRecord({"head": request.head()}), "body": packed(request.body)})
        return Message(content=content, message_type="query", dst_node_id=node, ttl=timeout)


def request_of(message: Message) -> Request:
    """The request in a message, at the silo."""
    try:
        head, body = str(message.content["request"]["head"]), message.content["body"]
    except (KeyError, TypeError, ValueError):
        raise BadInput("a message arrived that holds no request") from None
    return request(head, unpacked(body))


def reply(message: Message, answer: Answer) -> Message:
    """The silo's answer as a message."""
    content = RecordDict(
        {"answer": ConfigRecord({"refusal": answer.refusal, "to": answer.to}), "body": packed(answer.body)}
    )
    return Message(content=content, reply_to=message)


def answer_of(message: Message) -> Answer | Failure:
    """A silo's answer, or what Flower says instead of it."""
    if message.has_error():
        error = message.error
        if error.code == GONE:
            return Failure("went away while it was asked")
        kind = Lost if error.code in ASK_AGAIN else Failure
        return kind(plain(f"its process failed (Flower's code {error.code}: {error.reason})", LONGEST_REFUSAL))
    try:
        told = message.content["answer"]
        refusal = str(told["refusal"])
        return Answer(unpacked(message.content["body"]) if not refusal else b"", refusal, str(told["to"]))
    except (KeyError, ValueError, TypeError, BadInput) as error:
        return Failure(plain(f"its answer arrived damaged: {error}", LONGEST_REFUSAL))


def packed(body: bytes) -> ArrayRecord:
    """A record's bytes as one ArrayRecord; the rows of a large tensor apart, for Flower sends equal ones once."""
    arrays: dict[str, Array] = {}
    for name, tensor in (safetensors.torch.load(body) if body else {}).items():
        if tensor.ndim >= 2 and tensor.nbytes > LARGE:
            arrays |= {f"{name}/{i:06d}": Array(row.numpy()) for i, row in enumerate(tensor.contiguous())}
        else:
            arrays[name] = Array(tensor.numpy())
    return ArrayRecord(arrays)


def unpacked(record: Any) -> bytes:
    """The bytes of a record again."""
    if not isinstance(record, ArrayRecord):
        raise BadInput("no arrays")
    whole: dict[str, Tensor] = {}
    parts: dict[str, list[np.ndarray]] = {}
    for name in sorted(record.keys()):
        value = from_bytes(record[name].data, f"the array '{name[:100]}'")  # Flower's own reader believes the header
        base, apart, _ = name.partition("/")
        if apart:
            parts.setdefault(base, []).append(value)
        else:
            whole[name] = _tensor(value)
    try:
        whole |= {name: _tensor(np.stack(rows)) for name, rows in parts.items()}
        return safetensors.torch.save(whole)
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"arrays that make no record: {error}") from None


def _tensor(value: Any) -> Tensor:
    try:
        return torch.from_numpy(np.array(value))
    except TypeError:
        raise BadInput(f"an array of {value.dtype}, which is no number that models are made of") from None
