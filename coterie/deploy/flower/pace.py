"""How long Flower's loops wait between two looks: a tenth of what they have waited, and no longer than they would.

So a small round is quick, a long one gets at most a tenth longer, and a silo that is asked nothing costs little. Where
the other side holds a question (`long_poll.py`), the next is asked at once.
"""

import time
from threading import Event
from typing import Any

from flwr.supercore.inflatable import inflatable_utils

SHORTEST = 0.1  # seconds
PART = 10
HELD = 1.0  # seconds: a question that took longer was held


class Pace:
    """The pauses of one loop; `came` ends one early."""

    def __init__(self, came: Event | None = None) -> None:
        self.came = came
        self.again()

    def again(self) -> None:
        """Something came: the next is waited for anew."""
        self.waited = 0.0  # seconds since then
        self.ended = time.monotonic()  # the last pause

    def sleep(self, seconds: float) -> None:
        """Wait as long as it is worth, at most so many seconds."""
        held = time.monotonic() - self.ended > HELD
        pause = SHORTEST if held else min(seconds, max(SHORTEST, self.waited / PART))
        self.waited += pause
        if self.came is None:
            time.sleep(pause)
        elif self.came.wait(pause):
            self.came.clear()
        self.ended = time.monotonic()


def hurry() -> None:
    """Have Flower look soon again for what is on its way to it: from when it knows of a message, it waits a second."""
    pulls: list[Any] = [inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree]
    for each in pulls:
        each.__kwdefaults__["initial_backoff"] = SHORTEST  # it is doubled each time
