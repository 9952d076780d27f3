"""Flower's SuperNode, which looks for messages every second: Flower's own three are most of a small round."""

import importlib
import time
from types import SimpleNamespace

LOOK = 1.0


def main() -> None:
    """Stands for Flower's program of that name at a silo."""
    from flwr.supernode.cli import flower_supernode

    loop = importlib.import_module("flwr.supernode.start_client_internal")
    loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, LOOK)))  # type: ignore[attr-defined]
    flower_supernode()
