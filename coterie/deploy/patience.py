"""What the coordinator of a run puts up with."""

from dataclasses import dataclass

from coterie.options import option

MANY = 1000  # times as many samples as the other silos, which is not believed unless the coordinator allows it


@dataclass(frozen=True)
class Patience:
    """What the coordinator puts up with: how long it waits, in seconds, and how many samples a silo may declare."""

    gather: float = option(120.0, "for all silos, before the first round", low=0)
    reply: float = option(600.0, "for one answer", above=0)
    silence: float = option(600.0, "for any silo at all, before a round goes on without", low=0)
    retries: int = option(2, "times that a lost answer is asked for again", low=0)
    pause: float = option(3.0, "between two tries", low=0)
    largest_silo: int | None = option(
        None, f"samples that a silo may declare; none: {MANY} times as many as the median of the others", low=1
    )
