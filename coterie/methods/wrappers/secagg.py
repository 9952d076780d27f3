"""Secure aggregation: the server sees sums of uploads and nothing else, even with some silos on its side.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017. Silo i adds to its
upload a mask of its own and, for each other silo j of the round, one that the two share, which j subtracts: in the sum
of all they cancel. Its own mask's seed, and those of its pairs, leave with the upload as Shamir's shares, each sealed
to one silo. Once the server has announced whose uploads count, these silos reveal for each of them the share of its own
seed, and of its pairs' with each that is missing; of a silo that does not count, the own seed stays a secret. A silo
reveals for one set of silos in a round alone. Seeds and seals go by what the round is (its silos in order, the
threshold, what all are asked): masks cancel, and shares open, among silos that were asked the same.

Pairs share secrets by their registered keys, so nothing is exchanged before the upload. Who is weighed by samples
multiplies before the mask, and sends the number of its samples as one more masked number.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import combinations
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engine.method import Cohort, Down, Method, Model, Roster, Task, Up
from coterie.engine.wrapper import layers
from coterie.errors import BadInput
from coterie.methods.parts.coefficients import NOT_LINEAR, Basis, Opening, coefficients, with_coefficients
from coterie.methods.wrappers import hidden
from coterie.methods.wrappers.hidden import BYTE, MODULUS, Hiding, WithHiding
from coterie.options import option
from coterie.secure.fixed import add_masks
from coterie.secure.masks import KEY, stream, subkey
from coterie.secure.shamir import PRIME, WIDTH, secret_of, shares
from coterie.wire import About, Record, described, record_of, rows, shared

TAG = 16  # bytes that a sealed message is longer
MOST_LEFT_OUT = 2  # answers that may be wrong, and are found by leaving them out


@dataclass(frozen=True)
class SecAgg(Hiding):
    """`secagg = {}` in a method's table, or `[secure] level = "secagg"` for all methods of a study."""

    threshold: float = option(2 / 3, "share of a round's silos that a sum needs; above a half", above=0.5, high=1)
    samples: int = option(1 << 24, "training samples of all silos together, at most", low=1, high=1 << 36)
    weights: Literal["method", "each"] = option("method", "each: all silos count alike, whatever their samples")

    @property
    def scale(self) -> float:
        """What numbers are multiplied with: the largest sum stays below 2^62."""
        return float(2.0 ** (62 - math.log2(self.limit) - math.ceil(math.log2(self.samples))))

    def least(self, silos: int) -> int:
        """t, how many of so many silos a sum needs."""
        return max(2, silos // 2 + 1, math.ceil(self.threshold * silos - 1e-9))


@cache
def _masked_up(kind: Any) -> Any:
    sums = "the sum alone: server"
    made = hidden.masked_fields(kind, seen_by=sums)
    made["count"] = About("its training samples, or 1, masked", "rows", "number", ("1",), sums, below=MODULUS)
    made["nonce"] = About("which upload it is", "rows", "number", (str(KEY),), "server, all silos", below=BYTE)
    made["commitments"] = About(
        "hashes of the seeds of its masks", "rows", "number", ("secrets", "32"), "server", below=BYTE
    )
    made["sealed"] = About(
        "shares of those seeds, one sealed to each silo", "rows", "number", ("n", "sealed"), "that silo", below=BYTE
    )
    made["out_of_range"] = hidden.OUT_OF_RANGE
    return record_of(kind.__name__, Up, "An upload of which the server sees the sum with the others' alone.", made)


@cache
def _with_peers(kind: Any) -> Any:
    peers = About("the silos that are asked in this round", "shared", "silo", ("n",), below="N")
    return record_of(kind.__name__, kind, kind.__doc__, {"peers": peers})


class Question(Down):
    """Whose uploads count, and what others have sealed to a silo."""

    peers: Tensor = shared("the silos that were asked", "n", role="silo", below="N")
    counted: Tensor = shared("1: its upload counts", "n", below="2")
    nonces: Tensor = shared("which upload each has sent; zeros: none", "n", str(KEY), below=BYTE)
    sealed: Tensor = rows("what each has sealed to this silo", "n", "sealed", below=BYTE)


class Revealed(Up):
    """Shares of the seeds that are missing in the sum."""

    shares: Tensor = rows(
        "of each silo that counts: its own seed, and those of its pairs with silos that do not; zeros: not revealed",
        "n", "secrets", str(WIDTH), below=BYTE, seen_by="server",
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class WithSecAgg(WithHiding):
    """Any method whose server takes in nothing but a mean of the uploads."""

    summary = "the server sees the sum of all uploads alone"
    level = "secagg"
    covered = "a sum"

    options: SecAgg

    up = property(lambda self: _masked_up(self.method.up))
    down = property(lambda self: _with_peers(self.method.down))

    # Server

    def send(self, server: Any, cohort: Cohort) -> Any:
        return self._sent(self.method.send(server, cohort), cohort.ids)

    def host(self, server: Any, newcomers: Cohort, up: Any | None) -> Any:
        return self._sent(self.method.host(server, newcomers, None), newcomers.ids[:0])

    def _sent(self, down: Record, peers: Tensor) -> Any:
        return self.down(**vars(down), **{"peers": peers})

    def receive(self, server: Any, cohort: Cohort, up: Any) -> Any:
        if not isinstance(up, self.method.up):
            raise BadInput(
                "secagg: a search for learning rates would sum its candidates under one mask; give lr a value"
            )
        return self.method.receive(server, cohort, up)

    def confirm(self, asked: Cohort, cohort: Cohort, up: Any) -> Question:
        k, n, place = len(cohort), len(asked), torch.searchsorted(asked.ids, cohort.ids)
        if up.sealed.shape[1:] != (n, (n + 1) * WIDTH + TAG) or up.commitments.shape[1] != n + 1:
            raise BadInput(f"shares and hashes of an upload are not for {n} silos: void")
        counted = torch.zeros(len(asked), dtype=torch.uint8, device=asked.ids.device)
        counted[place] = 1
        nonces = up.nonce.new_zeros(len(asked), KEY)
        nonces[place] = up.nonce
        sealed = up.sealed.new_zeros(k, len(asked), up.sealed.shape[-1])
        sealed[:, place] = up.sealed[:, place].transpose(0, 1)  # what each sealed to each, as each is sent it
        return Question(peers=asked.ids, counted=counted, nonces=nonces, sealed=sealed)

    def summed(self, asked: Cohort, cohort: Cohort, up: Any, answered: Cohort, revealed: Any) -> Any:
        """The mean of the uploads, once for each silo that sent one; BadInput where it cannot be opened."""
        n, least = len(asked), self.options.least(len(asked))
        if min(len(cohort), len(answered)) < least:
            raise BadInput(f"{min(len(cohort), len(answered))} of {n} silos are left, and a sum needs {least}: void")
        place = torch.searchsorted(asked.ids, cohort.ids).tolist()
        missing = [j for j in range(n) if j not in place]
        points = torch.searchsorted(asked.ids, answered.ids).tolist()
        parts = {name: getattr(up, name).flatten(1) for name in (*described(self.method.up), "count")}
        total = torch.cat([*parts.values()], 1).sum(0)  # modulo 2^64
        given, seeds, signs = revealed.shares.cpu().numpy(), list[bytes](), list[int]()
        for row, i in enumerate(place):
            for number in (n, *missing):  # its own seed, and those of its pairs with who is missing
                found = {
                    points[a] + 1: int.from_bytes(given[a, i, number].tobytes(), "big") for a in range(len(points))
                }
                promised = bytes(up.nonce[row].tolist()), bytes(up.commitments[row, number].tolist())
                seeds.append(_agreed(found, least, *promised))
                signs.append(-1 if number == n or i < number else 1)
        add_masks(total, seeds, torch.tensor(signs, device=total.device))
        count = int(total[-1])
        if not 0 < count <= self.options.samples:
            raise BadInput(f"a sum of {count} samples cannot be; an upload was not what it claimed to be: void")
        mean = total[:-1].double() / (self.options.scale * count)
        if float(mean.abs().max()) > self.options.limit:
            raise BadInput("the sum is beyond any sum of models; an upload was not what it claimed to be: void")
        made = self.unflat(mean[None].to(asked.model.dtype), up)
        return self.method.up(**{name: part.expand(len(cohort), *part.shape[1:]) for name, part in made.items()})

    # Silo

    def opened(self, task: Task, down: Any) -> Any:
        return self.method.down(**{f.name: getattr(down, f.name) for f in fields(self.method.down)})

    def masked(self, task: Task, up: Any, down: Any) -> Any:
        whole, out = self.flat(up)
        weights = (task.held() if self.by_samples else torch.ones(task.k, dtype=torch.int64)).to(whole.device)
        scaled = (whole.double() * (weights[:, None] * self.options.scale)).round_().long()
        vector = torch.cat([scaled, weights[:, None]], 1)  # (k, numbers + 1)
        peers = down.peers.tolist()
        each = [self._one(task, task.names[row], peers, vector[row]) for row in range(task.k)]
        nonce, commitments, sealed = (torch.stack([*column]) for column in zip(*each, strict=True))
        made = self.unflat(vector[:, :-1], up) | {"count": vector[:, -1:], "out_of_range": out}
        return self.up(**made, **{"nonce": nonce, "commitments": commitments, "sealed": sealed})

    def _one(self, task: Task, name: str, peers: list[int], vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mask one silo's numbers; its nonce, what it commits itself to, and what it seals to each other silo."""
        names, n = _named(task, peers), len(peers)
        if n < 3:
            raise BadInput(f"secagg: a round of {n} silos; in a sum of two each sees the other's upload")
        own, least = names.index(name), self.options.least(n)
        bound = _bound(task, names, least)
        root = subkey(task.secret.encode() or hidden.simulated(task), "secagg", name, bound, hidden.digest(vector))
        nonce = subkey(root, "nonce")
        seeds = [subkey(_pair(task, name, other), "mask", bound) if other != name else bytes(KEY) for other in names]
        seeds.append(subkey(root, "self"))
        others = [j for j in range(n + 1) if j != own]
        signs = torch.tensor([1 if own < j else -1 for j in others], device=vector.device)
        add_masks(vector, [seeds[j] for j in others], signs)
        split = [self._shares(root, number, seed, least, n) for number, seed in enumerate(seeds)]
        sealed = [
            _box(task, name, other, bound, nonce).encrypt(bytes(12), b"".join(each[j] for each in split), nonce)
            for j, other in enumerate(names)
        ]
        commitments = [_commitment(nonce, seed) for seed in seeds]
        return _bytes(nonce, vector.device), _bytes(commitments, vector.device), _bytes(sealed, vector.device)

    @staticmethod
    def _shares(root: bytes, number: int, seed: bytes, least: int, n: int) -> list[bytes]:
        drawn = stream(subkey(root, "polynomial", number), 80 * (least - 1)).tobytes()  # 2^-119 from uniform
        coefficients = [int.from_bytes(drawn[80 * i : 80 * (i + 1)], "big") % PRIME for i in range(least - 1)]
        return [each.to_bytes(WIDTH, "big") for each in shares(int.from_bytes(seed, "big"), coefficients, n)]

    def confirmed(self, task: Task, question: Any) -> Revealed:
        peers, counted = question.peers.tolist(), question.counted.tolist()
        names, n, least = _named(task, peers), len(peers), self.options.least(len(peers))
        if sum(counted) < least:
            raise BadInput(f"{sum(counted)} of {n} silos count, and a sum needs {least}: nothing revealed")
        if not all(counted[names.index(name)] for name in task.names):
            raise BadInput("this silo's own upload does not count: nothing revealed")
        bound, found = _bound(task, names, least), torch.zeros(task.k, n, n + 1, WIDTH, dtype=torch.uint8)
        wanted = [n, *(j for j in range(n) if not counted[j])]
        for row, name in enumerate(task.names):
            for i in (i for i in range(n) if counted[i]):
                opened = _opened(task, name, names[i], bound, question.nonces[i], question.sealed[row, i])
                if opened is not None:
                    found[row, i, wanted] = opened[wanted]
        return Revealed(shares=found.to(question.sealed.device))

    # Whether it may

    @property
    def by_samples(self) -> bool:
        """Whether silos are weighed by their samples."""
        return self.options.weights == "method" and weighing(self.method) == "samples"

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if (reason := super().refusal(roster, model)) is not None:
            return reason
        if any(about.kind != "shared" for about in described(self.method.down).values()):
            return "secagg: its silos are sent different things, and a sum hides those alone that are asked the same"
        if not self.method.averages or weighing(self.method) is None:
            return "secagg: its server takes in more than a mean of the uploads"
        if len(roster) < 3:
            return "secagg: in a sum of two, each silo sees the other's upload; take 3 silos or more"
        return None


def weighing(method: Method) -> str | None:
    """Whether a server's mean weighs silos by samples or alike, found from its step on coefficients; None: neither."""
    try:
        return _weighing(method)
    except (BadInput, *NOT_LINEAR):
        return None


@cache
def _weighing(method: Method) -> str | None:
    sizes, starts = torch.tensor([1, 3]), 64
    roster, components = Roster(("one", "other"), sizes, sizes, 0), getattr(layers(method)[-1], "components", 1)
    cells = [about.axes[:-1] for about in described(method.up).values()]
    shapes = [[components for _ in lead] for lead in cells]  # the only axis that models have beside their columns
    each = [math.prod(shape) for shape in shapes]
    width = starts + 2 * sum(each)
    no_model: Any = SimpleNamespace(device=torch.device("cpu"), start=lambda seed, *key: torch.zeros(1))
    opening: Any = Opening(no_model, starts)
    server = with_coefficients(method.open(roster, opening), lambda t: F.pad(t, (0, width - starts)))
    basis: Any = Basis(width, torch.zeros(width, 1, dtype=torch.float64), torch.device("cpu"))
    ones = F.pad(torch.eye(2 * sum(each), dtype=torch.float64), (starts, 0)).reshape(2, -1, width)  # (silos, cells, n)
    parts = ones.split(each, 1)  # type: ignore[no-untyped-call]
    ups = {
        name: part.reshape(2, *shape, width)
        for name, part, shape in zip(described(method.up), parts, shapes, strict=True)
    }
    after = method.receive(server, Cohort(torch.arange(2), 0, roster, basis), method.up(**ups))
    found = set()
    for t in coefficients(after):
        one, other = t.reshape(-1, width)[:, starts:].reshape(-1, 2, sum(each)).unbind(1)
        for a, b in zip(one.flatten().tolist(), other.flatten().tolist(), strict=True):
            if a or b:
                found.add("each" if math.isclose(a, b) else "samples" if math.isclose(3 * a, b) else "neither")
    return found.pop() if len(found) == 1 and found <= {"each", "samples"} else None


def _named(task: Task, peers: list[int]) -> list[str]:
    """The names of a round's silos, each once and in the roster's order, which all of them are sent alike."""
    hidden.check_keys("secagg", task, task.pair)
    if peers != sorted({*peers}):
        raise BadInput("secagg: the silos of the round are not each there once, in the roster's order")
    names = [(task.members or task.store.names)[each] for each in peers]
    if len({*names}) < len(names) or not {*task.names} <= {*names}:
        raise BadInput("secagg: the silos of the round are not this one and others, each once")
    return names


def _pair(task: Task, own: str, other: str) -> bytes:
    """What two silos of a run share; in a simulation it goes by the seed."""
    if task.pair is not None:
        return task.pair(other)
    hidden.check_keys("secagg", task, None)
    return hidden.simulated(task, *sorted((own, other)))


def _bound(task: Task, names: list[str], least: int) -> bytes:
    """What the secrets of a round are bound to, so that two silos share none where they were asked different things."""
    return subkey(task.context, "secagg", task.round, least, *names)


def _box(task: Task, sender: str, receiver: str, bound: bytes, nonce: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    own, other = (sender, receiver) if sender in task.names else (receiver, sender)
    return ChaCha20Poly1305(subkey(_pair(task, own, other), "shares", sender, receiver, bound, nonce))


def _opened(task: Task, own: str, sender: str, bound: bytes, nonce: Tensor, sealed: Tensor) -> Tensor | None:
    """The shares that a silo has sealed to this one: (n + 1, WIDTH); None where they are not what it sealed."""
    from cryptography.exceptions import InvalidTag

    name = bytes(nonce.tolist())
    try:
        found = _box(task, sender, own, bound, name).decrypt(bytes(12), bytes(sealed.tolist()), name)
    except InvalidTag:
        return None
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).reshape(-1, WIDTH)


def _agreed(found: Mapping[int, int], least: int, nonce: bytes, commitment: bytes) -> bytes:
    """The seed that its owner committed itself to, from the shares of it; a few wrong ones are left out."""
    known = {x: y for x, y in found.items() if y}
    for left_out in range(min(MOST_LEFT_OUT, len(known) - least) + 1):
        for without in combinations(known, left_out):
            chosen = [x for x in known if x not in without][:least]
            seed = secret_of({x: known[x] for x in chosen})
            if seed < 256**KEY and _commitment(nonce, seed.to_bytes(KEY, "big")) == commitment:
                return seed.to_bytes(KEY, "big")
    raise BadInput("too many shares of a seed are missing or wrong: void")


def _commitment(nonce: bytes, seed: bytes) -> bytes:
    return hashlib.sha256(b"commitment" + nonce + seed).digest()


def _bytes(values: bytes | list[bytes], device: torch.device) -> Tensor:
    whole = values if isinstance(values, bytes) else b"".join(values)
    made = torch.from_numpy(np.frombuffer(whole, dtype=np.uint8).copy())
    return (made if isinstance(values, bytes) else made.reshape(len(values), -1)).to(device)
