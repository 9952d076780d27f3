"""Flower's SuperLink, whose control and runtime paths ask for no identity: they answer the account it runs under.

Of what silos push it takes no more than they were asked for, and who asks for messages waits until there are some.
"""

import os
from pathlib import Path

from coterie.deploy.flower.allowance import FILE, Allowance, limit
from coterie.deploy.flower.long_poll import Messages, hold
from coterie.deploy.flower.same_account import PUBLISHED, guard
from coterie.deploy.home import COORDINATOR
from coterie.errors import warn


def main() -> None:
    """Stands for Flower's program of that name at the coordinator."""
    from flwr.proto.message_pb2 import PushObjectResponse
    from flwr.superlink import main as served
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers

    hold(served, Messages())
    guard(served, PUBLISHED)
    allowance = Allowance(Path(os.environ[COORDINATOR]) / FILE)
    limit(fleet_handlers, allowance, lambda stored: PushObjectResponse(stored=stored), warn)
    flower_superlink()
