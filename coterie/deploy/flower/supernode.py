"""Flower's SuperNode, which looks for messages every second (Flower's own three are most of a small round) and answers
no other account of its machine."""

import importlib
import time
from types import SimpleNamespace

from coterie.deploy.flower.same_account import guard

LOOK = 1.0


def main() -> None:
    """Stands for Flower's program of that name at a silo."""
    from flwr.supernode import main as served
    from flwr.supernode.cli import flower_supernode

    guard(served)
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, LOOK)))  # type: ignore[attr-defined]
    flower_supernode()
