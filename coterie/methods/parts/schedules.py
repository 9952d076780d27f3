"""Hyper-parameters that change with the round."""

import sys
from dataclasses import dataclass

from coterie.options import option


@dataclass(frozen=True)
class StepDecay:
    """`start`, multiplied by `factor` every `every` rounds, but never below `floor`."""

    start: float = option(1e4, "value in the first round", above=0)
    factor: float = option(0.1, "what it is multiplied with", above=0)
    every: int = option(30, "after how many rounds", low=1)
    floor: float = option(0.0, "what it does not fall below", low=0)

    def at(self, round: int) -> float:
        """The value in a round counted from 0: small as it may get, never 0."""
        return max(self.start * self.factor ** (round // self.every), self.floor, sys.float_info.min)


def at(value: float | StepDecay, round: int) -> float:
    """A constant or a schedule, in a round counted from 0."""
    return value.at(round) if isinstance(value, StepDecay) else value
