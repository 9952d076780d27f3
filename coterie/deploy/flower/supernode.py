"""Flower's SuperNode, whose loops go on as soon as there is something to do (its pauses were most of a small round),
which answers no other account of its machine, and which takes no more from the coordinator than its silo allows."""

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

from coterie.deploy.flower.commands import REFUSED
from coterie.deploy.flower.intake import Intake, counted, limited
from coterie.deploy.flower.long_poll import News, hold
from coterie.deploy.flower.pace import Pace, hurry
from coterie.deploy.flower.same_account import guard
from coterie.deploy.home import EVENTS, SILO, largest_download
from coterie.deploy.logs import append

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


def keep_door(loop: Any, folder: Path) -> None:
    """Have Flower's loop drop, and answer with a refusal, what is more than the silo of this folder takes."""
    from flwr.app import Error, Message

    def refuse(message: Any, state: Any, store: Any, why: str) -> None:
        loop._insert_message(Message(Error(REFUSED, why), reply_to=message), state, store)

    intake = Intake(lambda: largest_download(folder))
    connection: Any = importlib.import_module("flwr.supernode.fleet_http_connection")
    connection.FleetHttpClient = counted(connection.FleetHttpClient, intake)

    def say(what: str) -> None:
        with suppress(OSError):  # a full disk takes no notes
            append(folder / EVENTS, what)

    loop._pull_and_store_message = limited(loop._pull_and_store_message, intake, refuse, say)


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
    keep_door(loop, Path(os.environ[SILO]))
    loop._pull_and_store_message = tasks.pulled(loop._pull_and_store_message)
    try:
        flower_supernode()
    except KeyboardInterrupt:
        # Refused by a coordinator that does not know it (its disk was lost), two threads ask it to end, and the second
        # breaks the end that the first began: the threads that are left would keep the process for ever.
        os._exit(1)
