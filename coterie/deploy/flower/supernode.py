"""Flower's SuperNode, whose loops go on as soon as there is something to do (its pauses were most of a small round) and
which answers no other account of its machine."""

import importlib
import os
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

from coterie.deploy.flower.long_poll import News, hold
from coterie.deploy.flower.pace import Pace, hurry
from coterie.deploy.flower.same_account import guard

REPLY = 0.5  # seconds that its loop waits between two looks for a reply; for messages it waits longer


class Tasks:
    """The SuperExec waits for a message to work on, the loop of the SuperNode for what comes of it."""

    def __init__(self) -> None:
        self.messages, self.came = News(), Event()

    def asked(self, path: str, caller: bytes) -> News | None:
        """What a question waits for."""
        return self.messages if path == "/v1/runtime/acquire-task" else None

    def done(self, path: str, caller: bytes) -> None:
        """A reply, or a part of one, is there."""
        if path in ("/v1/runtime/push-messages", "/v1/runtime/push-object"):
            self.came.set()

    def pulled(self, pull: Callable[..., Any]) -> Callable[..., Any]:
        """A message that was pulled whole is there to be worked on."""

        def pulled(*given: Any, **named: Any) -> Any:
            run = pull(*given, **named)
            if run is not None:
                self.messages.came()
            return run

        return pulled

    def sleep(self, messages: Pace, replies: Pace) -> Callable[[float], None]:
        """Waits for messages and for replies in turn: where one is waited for, the other came."""

        def sleep(seconds: float) -> None:
            waits, came = (replies, messages) if seconds <= REPLY else (messages, replies)
            came.again()
            waits.sleep(seconds)

        return sleep


def main() -> None:
    """Stands for Flower's program of that name at a silo."""
    from flwr.supernode import main as served
    from flwr.supernode.cli import flower_supernode

    tasks = Tasks()
    hurry()
    hold(served, tasks)
    guard(served)
    loop: Any = importlib.import_module("flwr.supernode.start_client_internal")
    loop.time = SimpleNamespace(sleep=tasks.sleep(Pace(), Pace(tasks.came)))
    loop._pull_and_store_message = tasks.pulled(loop._pull_and_store_message)
    try:
        flower_supernode()
    except KeyboardInterrupt:
        # Refused by a coordinator that does not know it (its disk was lost), two threads ask it to end, and the second
        # breaks the end that the first began: the threads that are left would keep the process for ever.
        os._exit(1)
