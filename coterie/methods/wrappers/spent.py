"""What a run spent of its silos' privacy: the ε of its rounds, by Google's dp-accounting.

The silos that took part in a round are known, and every upload is seen on its own. So nothing is won by sampling: the ε
of a silo is that of its own uploads, and a run's is that of the silo which was asked most often.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coterie.engine.method import Method, Roster
from coterie.engine.rounds import drawn
from coterie.engine.training import Training
from coterie.engine.wrapper import Wrapper
from coterie.methods.wrappers.privacy import WithPrivacy


def spent(method: Method, members: Mapping[int, Sequence[str]], training: Training) -> dict[str, Any]:
    """What a summary says of a method's privacy, of its worst seed; nothing of a method without. `members` by seed."""
    while isinstance(method, Wrapper) and not isinstance(method, WithPrivacy):
        method = method.base
    if not isinstance(method, WithPrivacy):
        return {}
    o, uploads = method.options, max(most_asked(names, seed, training) for seed, names in members.items())
    about = {"clip": o.clip, "noise": o.noise, "delta": o.delta, "uploads": uploads}
    return {"privacy": {"epsilon": epsilon(o.noise, uploads, o.delta), **about}}


def most_asked(names: Sequence[str], seed: int, training: Training) -> int:
    """In how many rounds the silo was asked that was asked most often; a lost reply has left its silo all the same."""
    if training.participation == 1:
        return training.rounds
    everyone = torch.arange(len(names))
    roster, times = Roster(tuple(names), everyone, everyone, seed), Counter[int]()
    for round in range(training.rounds):
        times.update(drawn(roster, everyone, "cohort", round, training.participation, at_least=1).tolist())
    return max(times.values())


def epsilon(noise: float, uploads: int, delta: float) -> float:
    """ε of so many uploads for replacing all data of a silo by any other.

    That turns a change of length C around at most, so it moves an upload by 2 C: the noise is z/2 times that.
    """
    if noise == 0:
        return math.inf
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    # Said as a ratio of noise to sensitivity, since dp-accounting's accountants differ in whether replacing doubles it.
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(noise / 2), uploads)
    return float(accountant.get_epsilon(delta))
