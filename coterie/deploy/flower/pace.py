"""How long Flower's loops wait between two looks: a tenth of what they have waited, and no longer than they would.

So a small round is quick, a long one gets at most a tenth longer, and a silo that is asked nothing costs little.
"""

import time
from typing import Any

from flwr.supercore.inflatable import inflatable_utils

SHORTEST = 0.1  # seconds
PART = 10


class Pace:
    """The pauses of one loop."""

    def __init__(self) -> None:
        self.waited = 0.0  # seconds since something came

    def again(self) -> None:
        """Something came: the next is waited for anew."""
        self.waited = 0.0

    def sleep(self, seconds: float) -> None:
        """Wait as long as it is worth, at most so many seconds."""
        pause = min(seconds, max(SHORTEST, self.waited / PART))
        self.waited += pause
        time.sleep(pause)


def hurry() -> None:
    """Have Flower look soon again for what is on its way to it: from when it knows of a message, it waits a second."""
    pulls: list[Any] = [inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree]
    for each in pulls:
        each.__kwdefaults__["initial_backoff"] = SHORTEST  # it is doubled each time
