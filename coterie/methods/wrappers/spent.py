"""What a run spent of its silos' privacy: the ε of all that left them.

The silos that took part in a round are known, and every upload is seen on its own. So nothing is won by asking few: ε
of a silo is that of its own uploads, over all rounds, seeds and methods, for they are all of the same data; a search
for learning rates counts, since its candidates upload. A run's ε is that of its worst silo.

Under secure aggregation a server sees sums alone, and the noise of all silos in one adds up (distributed differential
privacy). Where all count alike, a sum of t silos has √t times the noise of one upload, and hides each behind all of it.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import torch

from coterie.engine.method import Method, Roster
from coterie.engine.rounds import drawn, round_half_up
from coterie.engine.training import Training
from coterie.engine.wrapper import layers
from coterie.methods.wrappers.accounting import Mechanism, composed
from coterie.methods.wrappers.privacy import Privacy, WithPrivacy
from coterie.methods.wrappers.secagg import WithSecAgg

Members = Mapping[int, Mapping[str, int]]  # by seed, the training samples of every silo
Searched = Mapping[str, Sequence[int]]  # by method, for how many rounds each candidate of its search trained
Ran = Mapping[str, int]  # by method, how many of the planned rounds there were


def spent(
    methods: Mapping[str, Method],
    trainings: Mapping[str, Training],
    members: Members,
    searched: Searched = MappingProxyType({}),
    ran: Ran = MappingProxyType({}),
) -> dict[str, Any]:
    """What a summary has of the privacy of each method that has some: of the silo that is worst off."""
    found = dict[str, Any]()
    for name, method in methods.items():
        if (o := privacy_of(method)) is not None:
            together = in_sum(method, trainings[name], members) if o.level == "silo" else 1
            uses = used(o, trainings[name], members, searched.get(name, ()), ran.get(name), together)
            silo, epsilon = _worst({silo: each.mechanisms for silo, each in uses.items()}, o.delta)
            about: dict[str, Any] = {"clip": o.clip, "delta": o.delta, "uploads": uses[silo].uploads}
            about |= {"in_search": uses[silo].in_search} if uses[silo].in_search else {}
            about |= {"silos_in_sum": together} if together > 1 else {}
            (q, ratio), _ = uses[silo].mechanisms.most_common(1)[0]
            if o.level == "record":
                steps = sum(uses[silo].mechanisms.values())
                about |= {"noise": ratio, "silo": silo, "steps": steps, "sampling": q}
            else:
                about |= {"noise": o.noise}
            found[name] = {"epsilon": epsilon, "level": o.level, **about}
    return found


def spent_by_all(
    methods: Mapping[str, Method],
    trainings: Mapping[str, Training],
    members: Members,
    searched: Searched = MappingProxyType({}),
    ran: Ran = MappingProxyType({}),
) -> dict[str, Any]:
    """What a summary has of all methods together, for the strictest of their δ; nothing where none has privacy.

    Where one method hides records alone, so does the run.
    """
    chosen = {name: privacy_of(method) for name, method in methods.items() if fields(method.up)}
    private = {name: o for name, o in chosen.items() if o is not None}
    if not private:
        return {}
    level = "record" if any(o.level == "record" for o in private.values()) else "silo"
    delta = min(o.delta for o in private.values())
    about = {"level": level, "delta": delta}
    bare = [name for name, o in chosen.items() if o is None or o.noise == 0]
    if bare:
        return {"epsilon": math.inf, **about, "silo": None, "unprotected": bare}
    by_silo: dict[str, Counter[Mechanism]] = {}
    for name, o in private.items():
        together = in_sum(methods[name], trainings[name], members) if o.level == "silo" else 1
        uses = used(o, trainings[name], members, searched.get(name, ()), ran.get(name), together)
        for silo, each in uses.items():
            by_silo.setdefault(silo, Counter()).update(each.mechanisms)
    silo, epsilon = _worst(by_silo, delta)
    return {"epsilon": epsilon, **about, "silo": silo, "unprotected": []}


@dataclass
class Uses:
    """What one silo's uploads of a method have used."""

    uploads: int = 0
    in_search: int = 0  # of these
    mechanisms: Counter[Mechanism] = field(default_factory=Counter)


def used(
    o: Privacy, training: Training, members: Members, candidates: Sequence[int], ran: int | None, together: int = 1
) -> dict[str, Uses]:
    """By silo what a method's uploads used, over all seeds; the first seed makes the search for all.

    `ran`: how many of the planned rounds there were, where there were fewer. `together`: how many silos' noise is on
    what is seen.
    """
    found = dict[str, Uses]()
    for place, (seed, sizes) in enumerate(members.items()):
        rounds = [*(candidates if place == 0 else ()), training.rounds if ran is None else ran]
        for each, n in enumerate(rounds):
            for silo, times in asked(training, seed, tuple(sizes), n).items():
                uses = found.setdefault(silo, Uses())
                uses.uploads += times
                uses.in_search += times if each < len(rounds) - 1 else 0
                plan = (training.batch_size, training.local_epochs, training.rounds)
                (q, ratio), count = o.mechanism(sizes[silo], *plan)
                uses.mechanisms[q, ratio * math.sqrt(together)] += times * count
    return found


def _worst(by_silo: Mapping[str, Counter[Mechanism]], delta: float) -> tuple[str, float]:
    """The silo with the largest ε (of equal ones that with most uploads), and that ε."""
    each = {silo: composed(mechanisms, delta) for silo, mechanisms in by_silo.items()}
    worst = max(by_silo, key=lambda silo: (each[silo], sum(by_silo[silo].values())))
    return worst, each[worst]


def privacy_of(method: Method) -> Privacy | None:
    """A method's privacy, under whatever else wraps it."""
    return next((each.options for each in layers(method) if isinstance(each, WithPrivacy)), None)


def in_sum(method: Method, training: Training, members: Members) -> int:
    """How many silos' noise is at least on whatever the server sees; 1: each upload is seen by itself.

    Of silos that are weighed by samples one may be nearly all of a sum, and then its own noise is what hides it.
    """
    if not isinstance(method, WithSecAgg) or method.by_samples:
        return 1
    fewest = min(len(names) for names in members.values())
    return method.options.least(max(1, round_half_up(training.participation * fewest)))


def asked(training: Training, seed: int, names: Sequence[str], rounds: int) -> Counter[str]:
    """How often each silo was asked in so many rounds of one seed; a lost reply has left its silo all the same."""
    if training.participation == 1:
        return Counter(dict.fromkeys(names, rounds))
    everyone, times = torch.arange(len(names)), Counter[str]()
    roster = Roster(tuple(names), everyone, everyone, seed)
    for round in range(rounds):
        cohort = drawn(roster, everyone, "cohort", round, training.participation, at_least=1)
        times.update(names[place] for place in cohort.tolist())
    return times
