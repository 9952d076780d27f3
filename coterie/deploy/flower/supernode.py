"""Flower's SuperNode, which waits as short as is worth it (Flower's three seconds are most of a small round) and
answers no other account of its machine."""

import importlib
import os
from collections.abc import Callable
from types import SimpleNamespace

from coterie.deploy.flower.pace import Pace, hurry
from coterie.deploy.flower.same_account import guard

REPLY = 0.5  # seconds that its loop waits between two looks for a reply; for messages it waits longer


def main() -> None:
    """Stands for Flower's program of that name at a silo."""
    from flwr.supernode import main as served
    from flwr.supernode.cli import flower_supernode

    hurry()
    guard(served)
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    loop.time = SimpleNamespace(sleep=_sleep(Pace(), Pace()))  # type: ignore[attr-defined]
    try:
        flower_supernode()
    except KeyboardInterrupt:
        # Refused by a coordinator that does not know it (its disk was lost), two threads ask it to end, and the second
        # breaks the end that the first began: the threads that are left would keep the process for ever.
        os._exit(1)


def _sleep(messages: Pace, replies: Pace) -> Callable[[float], None]:
    """Waits for messages and for replies in turn: where one is waited for, the other came."""

    def sleep(seconds: float) -> None:
        waits, came = (replies, messages) if seconds <= REPLY else (messages, replies)
        came.again()
        waits.sleep(seconds)

    return sleep
