"""One of several processes that `torchrun` started: the first writes and speaks, the others follow in silence."""

import os
import signal
import sys
import time
import traceback
from types import TracebackType

PATIENCE = 5.0  # seconds: torchrun ends all processes when one has failed, so the first is given time to say why


def used() -> bool:
    """Whether there are others."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and "LOCAL_RANK" in os.environ


def follower() -> bool:
    """Whether this is not the first of them."""
    return used() and int(os.environ["RANK"]) > 0


def hush() -> None:
    """Say nothing from here on, since the first says it too; only an error that nobody foresaw is still shown."""
    heard = os.fdopen(os.dup(2), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)

    def show(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        traceback.print_exception(kind, error, where, file=heard)
        heard.flush()

    sys.excepthook = show


def let_the_first_speak() -> None:
    """Wait before this process fails as well; torchrun ends it as soon as the first has failed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(PATIENCE)
