"""One of several processes that `torchrun` started: the first writes and prints, the others print nothing."""

import os
import signal
import time
from collections.abc import Callable

PATIENCE = 5.0  # seconds: torchrun ends all processes when one has failed, so the first is given time to print why


def used() -> bool:
    """Whether there are others."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and "LOCAL_RANK" in os.environ


def follower() -> bool:
    """Whether this is not the first of them."""
    return used() and int(os.environ["RANK"]) > 0


def hush() -> Callable[[], object]:
    """Let a follower print nothing, since the first prints it too; what is returned lets it print errors again."""
    if not follower():
        return lambda: None
    errors, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)

    return lambda: os.dup2(errors, 2)


def let_the_first_speak() -> None:
    """Wait before this process fails as well; torchrun ends it as soon as the first has failed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(PATIENCE)
