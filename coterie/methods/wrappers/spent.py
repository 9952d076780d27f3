"""What a run spent of its silos' privacy: the ε of all that left them, by Google's dp-accounting.

The silos that took part in a round are known, and every upload is seen on its own. So nothing is won by sampling: the ε
of a silo is that of its own uploads, over all rounds, seeds and methods, for they are all of the same data; a search
for learning rates counts, since its candidates upload. A run's ε is that of its worst silo.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from coterie.engine.method import Method, Roster
from coterie.engine.rounds import drawn
from coterie.engine.training import Training
from coterie.engine.wrapper import Wrapper
from coterie.methods.wrappers.privacy import Privacy, WithPrivacy

Members = Mapping[int, Sequence[str]]  # by seed
Searched = Mapping[str, Sequence[int]]  # by method, for how many rounds each candidate of its search trained


def spent(
    methods: Mapping[str, Method],
    trainings: Mapping[str, Training],
    members: Members,
    searched: Searched = MappingProxyType({}),
) -> dict[str, Any]:
    """What a summary says of the privacy of each method that has some: of the silo that it asked most often."""
    found = dict[str, Any]()
    for name, method in methods.items():
        if (o := privacy_of(method)) is not None:
            search = _in_search(trainings[name], members, searched.get(name, ()))
            times = asked(trainings[name], members) + search
            silo, uploads = times.most_common(1)[0]
            about = {"clip": o.clip, "noise": o.noise, "delta": o.delta, "uploads": uploads}
            about |= {"in_search": search[silo]} if search else {}
            found[name] = {"epsilon": epsilon({o.noise: uploads}, o.delta), **about}
    return found


def spent_by_all(
    methods: Mapping[str, Method],
    trainings: Mapping[str, Training],
    members: Members,
    searched: Searched = MappingProxyType({}),
) -> dict[str, Any]:
    """What a summary says of all methods together, for the strictest of their δ; nothing where none has privacy."""
    chosen = {name: privacy_of(method) for name, method in methods.items() if fields(method.up)}
    private = {name: o for name, o in chosen.items() if o is not None}
    if not private:
        return {}
    delta = min(o.delta for o in private.values())
    bare = [name for name, o in chosen.items() if o is None or not o.noise]
    if bare:
        return {"epsilon": math.inf, "delta": delta, "silo": None, "unprotected": bare}
    by_silo: dict[str, Counter[float]] = {}  # of each, how many uploads have which noise
    for name, o in private.items():
        search = _in_search(trainings[name], members, searched.get(name, ()))
        for silo, times in (asked(trainings[name], members) + search).items():
            by_silo.setdefault(silo, Counter())[o.noise] += times
    # Gaussian mechanisms compose to one whose 1/σ² is the sum of theirs.
    worst = max(by_silo, key=lambda silo: sum(times / noise**2 for noise, times in by_silo[silo].items()))
    return {"epsilon": epsilon(by_silo[worst], delta), "delta": delta, "silo": worst, "unprotected": []}


def privacy_of(method: Method) -> Privacy | None:
    """A method's privacy, under whatever else wraps it."""
    while isinstance(method, Wrapper) and not isinstance(method, WithPrivacy):
        method = method.base
    return method.options if isinstance(method, WithPrivacy) else None


def asked(training: Training, members: Members) -> Counter[str]:
    """How often each silo was asked, over all seeds; a lost reply has left its silo all the same."""
    times = Counter[str]()
    for seed, names in members.items():
        everyone = torch.arange(len(names))
        roster = Roster(tuple(names), everyone, everyone, seed)
        if training.participation == 1:
            times.update(dict.fromkeys(names, training.rounds))
            continue
        for round in range(training.rounds):
            cohort = drawn(roster, everyone, "cohort", round, training.participation, at_least=1)
            times.update(names[place] for place in cohort.tolist())
    return times


def _in_search(training: Training, members: Members, candidates: Sequence[int]) -> Counter[str]:
    """How often each silo was asked in the search, which the first seed makes for all."""
    first = dict([next(iter(members.items()))])
    return sum((asked(replace(training, rounds=rounds), first) for rounds in candidates), Counter[str]())


def epsilon(uploads: Mapping[float, int], delta: float) -> float:
    """ε of so many uploads of each noise for replacing all data of a silo by any other.

    That turns a change of length C around at most, so it moves an upload by 2 C: the noise is z/2 times that.
    """
    if 0 in uploads:
        return math.inf
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    # Said as a ratio of noise to sensitivity, since dp-accounting's accountants differ in whether replacing doubles it.
    accountant = PLDAccountant()
    for noise, times in uploads.items():
        accountant.compose(GaussianDpEvent(noise / 2), times)
    return float(accountant.get_epsilon(delta))


def gaussian_epsilon(squares: float, delta: float) -> float:
    """ε of Gaussian mechanisms whose squared ratios of sensitivity to noise have this sum; none of them sampled.

    Together they are one with that ratio μ, whose δ is known in closed form (Balle and Wang, ICML 2018, theorem 8).
    """
    if squares == 0:
        return 0.0
    mu = math.sqrt(squares)

    def excess(epsilon: float) -> float:
        low, high = -mu / 2 - epsilon / mu, mu / 2 - epsilon / mu
        return float(ndtr(high) - np.exp(epsilon + log_ndtr(low))) - delta

    most = 1.0
    while excess(most) > 0:
        most *= 2
    return float(brentq(excess, 0.0, most)) if excess(0.0) > 0 else 0.0
