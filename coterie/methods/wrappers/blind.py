"""Blind: the server computes on models that it cannot read.

All silos share a group key that the server does not have. What leaves a silo is its model in fixed point plus a mask of
that key, modulo 2^64: an additively homomorphic stream cipher (Castelluccia, Mykletun and Tsudik, "Efficient
Aggregation of Encrypted Data in Wireless Sensor Networks", MobiQuitous 2005). A server that adds up, averages or mixes
does the same to masked models; it sends each silo the sum, its weights and which masks are in it, and the silo takes
these off. Where weights go by how models lie to each other, silos also send secret sketches (`secure/sketch.py`): one R
for all rounds of a run, since a missing silo's last model is compared with the others' new ones.

No method knows of it. Its server half runs on a stand-in for the model whose rows are not weights but coefficients: how
much of each masked model (a cell) is in them. Whether it may is tried before the first round: the same steps on
coefficients and on numbers must come to the same.

A mask is used once: it is drawn by a nonce, a keyed hash of the very numbers it hides (as in AES-SIV, RFC 5297). Two
different uploads never share one, whatever was restored from a backup; asked again for the same, a silo sends the same
bits. A simulation has no secrets: its group key goes by the seed, and protects nobody.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engine.method import Cohort, Columns, Deployable, Down, Method, Model, Roster, Task, Up
from coterie.engine.wrapper import Wrapper
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.options import option
from coterie.secure.fixed import FixedPoint, as_weights, combined
from coterie.secure.masks import KEY, mask, subkey
from coterie.secure.sketch import normal, sketch
from coterie.wire import About, Record, Server, described, held, record_of, shared

R = TypeVar("R", bound=Record)
MODULUS = "2^64"
LEAST = 2.0**-25  # a weight below this is none in fixed point
WEIGHTS = "_weights"
TRIED = 1e-3  # how far apart the same step may be on coefficients and on numbers, in single precision
NOT_LINEAR = (RuntimeError, IndexError, AttributeError, NotImplementedError, TypeError, ValueError)


@dataclass(frozen=True)
class Blind:
    """`blind = {}` in a method's table, or `[secure] level = "blind"` for all methods of a study."""

    limit: float = option(1024.0, "the largest number of a model that may leave, a power of two", low=1, high=2**20)
    sketch: int = option(256, "k, numbers of a silo's sketch, for methods that compare models", low=16, high=1 << 16)
    noise: float = option(0.0, "length of the random vector that is added to a sketch", low=0, below=math.inf)

    def __post_init__(self) -> None:
        if not math.log2(self.limit).is_integer():
            raise ValueError("limit: give a power of two, e.g. 1024")

    @property
    def fixed(self) -> FixedPoint:
        """How numbers are written."""
        return FixedPoint(self.limit)


class Cells(Server):
    """What the method's server keeps, in coefficients, and the masked models that these are of."""

    cipher: Tensor = shared("masked models; a random start, which all know, has no mask", "cells", "s", below=MODULUS)
    nonce: Tensor = shared("which mask each has; zeros: none", "cells", str(KEY), below="256")
    sketch: Tensor = shared("their secret sketches, where models are compared", "cells", "k")
    inner: Server


class Basis:
    """Stands in for a model at the server: a row (..., n) has the coefficients of n cells."""

    dtype = torch.float64
    sliced = False

    def __init__(self, width: int, sketches: Tensor, device: torch.device) -> None:
        self.width = self.trained = width
        self.sketches, self.device = sketches, device
        self.parameters = self.buffers = ()

    @property
    def layout(self) -> "Basis":
        """Of its columns."""
        return self

    def columns(self, *names: Any, empty: bool = False) -> Columns:
        """All columns, or none: a part of a model is no part of its coefficients."""
        whole = "*" in names or any("*" in each for each in names)
        return Columns(("*",), ((0, self.width),), self.width) if whole else Columns((), (), 0)

    def weights(self, rows: Tensor) -> Tensor:
        """The sketches of rows, which lie to each other as what is trained of them does."""
        return rows @ self.sketches


class Opening(Basis):
    """A basis before the first round: every random start that a server asks for becomes a cell."""

    def __init__(self, model: Model, cells: int) -> None:
        super().__init__(cells, torch.zeros(cells, 1, dtype=torch.float64), model.device)
        self.model, self.known = model, dict[tuple[object, ...], Tensor]()

    def start(self, seed: int, *key: object) -> Tensor:
        """The coefficients of a random start."""
        self.known.setdefault((seed, *key), self.model.start(seed, *key))
        row = torch.zeros(self.width, dtype=self.dtype, device=self.device)
        row[[*self.known].index((seed, *key))] = 1
        return row

    def starts(self, seed: int, names: tuple[str, ...], common: bool) -> Tensor:
        """Those of the silos' first models."""
        return torch.stack([self.start(seed) if common else self.start(seed, name) for name in names])


@dataclass(frozen=True)
class WithBlind(Wrapper):
    """Any method whose silos send models alone, and whose server only adds them up."""

    summary: ClassVar[str] = "the server computes on models that it cannot read"

    method: Method
    options: Blind

    @property
    def base(self) -> Method:
        return self.method

    @property
    def up(self) -> type[Up]:  # type: ignore[override]
        kind: Any = self.method.up
        return cast(type[Up], _masked_up(kind, self.method.compares))

    @property
    def down(self) -> type[Down]:  # type: ignore[override]
        kind: Any = self.method.down
        return cast(type[Down], _masked_down(kind))

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        inner = self.method.axes(roster, model)
        cells = sum(math.prod(inner[axis] for axis in about.axes[:-1]) for about in described(self.method.up).values())
        return inner | {"k": self.options.sketch, "q": cells}

    # Server

    def open(self, roster: Roster, model: Model) -> Cells:
        opening = Opening(model, len(roster) + MOST_STARTS)
        inner = self.method.open(roster, cast(Any, opening))
        starts = self.method.shared(model).take(torch.stack([*opening.known.values()]))
        if not bool(self.options.fixed.fits(starts).all()):
            raise BadInput(f"blind: the first model has numbers beyond {self.options.limit:g}; give a larger limit")
        return Cells(
            cipher=self.options.fixed.encode(starts),
            nonce=torch.zeros(len(starts), KEY, dtype=torch.uint8, device=model.device),
            sketch=torch.zeros(len(starts), self.options.sketch, dtype=torch.float64, device=model.device),
            inner=with_columns(inner, lambda t: t[..., : len(starts)]),
        )

    def send(self, server: Cells, cohort: Cohort) -> Any:
        return self._sent(server, self.method.send(server.inner, _on(cohort, server)))

    def receive(self, server: Cells, cohort: Cohort, up: Any) -> Cells:
        wider, arrived = self._wider(server, up)
        inner = self.method.receive(wider.inner, _on(cohort, wider), arrived)
        return _pruned(wider.replace(inner=inner))

    def host(self, server: Cells, newcomers: Cohort, up: Any | None) -> Any:
        if up is None:
            return self._sent(server, self.method.host(server.inner, _on(newcomers, server), None))
        wider, arrived = self._wider(server, up)
        return self._sent(wider, self.method.host(wider.inner, _on(newcomers, wider), arrived))

    def unpacked(self, down: Any, up: Any) -> Any:
        return up

    def trace(self, server: Cells, everyone: Cohort, private: Any) -> Mapping[str, Tensor]:
        return self.method.trace(server.inner, _on(everyone, server), None)

    def _wider(self, server: Cells, up: Any) -> tuple[Cells, Any]:
        """The server with a new cell for each model that arrived, and the coefficients of those: ones in their own."""
        arrived = {name: getattr(up, name) for name in described(self.method.up)}
        per_silo = [math.prod(t.shape[1:-1]) for t in arrived.values()]
        k, q, n = len(up.nonce), sum(per_silo), len(server.nonce)
        cipher = torch.cat([t.reshape(k, -1, t.shape[-1]) for t in arrived.values()], 1)  # (k, q, s)
        nonces = [list(subkey(bytes(each.tolist()), cell)) for each in up.nonce for cell in range(q)]
        sketches = server.sketch.new_zeros(k * q, server.sketch.shape[1])
        if self.method.compares:
            sketches = up.sketch.to(sketches).reshape(k * q, -1)
            public = (server.nonce == 0).all(1)
            server = server.replace(
                sketch=torch.where(public[:, None], up.start_sketch[:1].to(sketches), server.sketch)
            )
        ones = torch.eye(k * q, dtype=torch.float64, device=cipher.device).reshape(k, q, -1)
        parts = F.pad(ones, (n, 0)).split(per_silo, 1)  # type: ignore[no-untyped-call]
        made = {name: part.reshape(*t.shape[:-1], -1) for (name, t), part in zip(arrived.items(), parts, strict=True)}
        wider = Cells(
            cipher=torch.cat([server.cipher, cipher.flatten(0, 1)]),
            nonce=torch.cat([server.nonce, torch.tensor(nonces, dtype=torch.uint8, device=cipher.device)]),
            sketch=torch.cat([server.sketch, sketches]),
            inner=with_columns(server.inner, lambda t: F.pad(t, (0, k * q))),
        )
        return wider, self.method.up(**made)

    def _sent(self, server: Cells, down: Record) -> Any:
        """What silos are sent, given in coefficients: sums of masked models, and what it takes to open them."""
        made: dict[str, Any] = {"nonces": server.nonce}
        for name, about in described(down).items():
            value = getattr(down, name)
            made[name] = value
            if about.has_columns:
                made[name + WEIGHTS] = as_weights(value)
                made[name] = combined(made[name + WEIGHTS], server.cipher)
        return self.down(**made)

    # Silo

    def begin(self, task: Task, down: Any, private: Any) -> Any:
        return self.method.begin(task, self.opened(task, down), private)

    def end(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        up, kept = self.method.end(task, state, self.opened(task, down), private)
        return self._masked(task, up), kept

    def personal(self, task: Task, down: Any, private: Any) -> Deployable:
        return self.method.personal(task, self.opened(task, down), private)

    def cloud(self, task: Task, down: Any, private: Any) -> Deployable | None:
        return self.method.cloud(task, self.opened(task, down), private)

    def adapt(self, task: Task, down: Any, private: Any | None) -> tuple[Any | None, Any]:
        up, kept = self.method.adapt(task, self.opened(task, down), private)
        return None if up is None else self._masked(task, up), kept

    def opened(self, task: Task, down: Any) -> Any:
        """What the method inside is sent: every sum without its masks."""
        group = group_key(task)
        known = _OPENED.get(down)
        if known is not None and known[0] == group:
            return known[1]
        kinds = described(self.method.down)
        made = {name: getattr(down, name) for name in kinds}
        sums = {name: made[name].clone() for name, about in kinds.items() if about.has_columns}
        for cell, nonce in enumerate(down.nonces.tolist()):
            weights = {name: getattr(down, name + WEIGHTS)[..., cell, None] for name in sums}
            if any(nonce) and any(bool(weight.any()) for weight in weights.values()):
                its = None
                for name, total in sums.items():
                    its = _mask(group, nonce, total.shape[-1]).to(total.device) if its is None else its
                    total.addcmul_(weights[name], its, value=-1)
        made |= {name: self.options.fixed.decode(total, task.model.dtype) for name, total in sums.items()}
        opened = self.method.down(**made)
        _OPENED[down] = (group, opened)
        return opened

    def _masked(self, task: Task, up: Any) -> Any:
        """An upload as it leaves; of a silo whose model is out of range nothing does."""
        models = {name: getattr(up, name) for name in described(self.method.up)}
        whole = torch.cat([t.reshape(task.k, -1, t.shape[-1]) for t in models.values()], 1)  # (k, q, s)
        fits, group = self.options.fixed.fits(whole), group_key(task)
        whole = torch.where(fits[:, None, None], whole, 0)
        cipher = self.options.fixed.encode(whole)
        nonces = [_nonce(task, row, group, each) for row, each in enumerate(cipher)]
        for row, cell in torch.cartesian_prod(*(torch.arange(n) for n in cipher.shape[:2])).reshape(-1, 2).tolist():
            its = subkey(nonces[row], cell)
            cipher[row, cell] += _mask(group, its, cipher.shape[2]).to(cipher.device)
        parts = cipher.split([math.prod(t.shape[1:-1]) for t in models.values()], 1)  # type: ignore[no-untyped-call]
        made = {name: part.reshape(t.shape) for (name, t), part in zip(models.items(), parts, strict=True)}
        made["nonce"] = torch.tensor([list(each) for each in nonces], dtype=torch.uint8, device=cipher.device)
        made["out_of_range"] = torch.where(fits, 0.0, torch.nan)
        if self.method.compares:
            made |= self._sketched(task, group, whole, nonces)
        return self.up(**made)

    def _sketched(self, task: Task, group: bytes, whole: Tensor, nonces: list[bytes]) -> dict[str, Tensor]:
        """The sketches of what is trained of a silo's models, and of the random start that all know."""
        columns, size = self.method.shared(task.model), self.options.sketch
        first = columns.take(task.model.start(task.seed))[None]
        models = torch.cat([whole.flatten(0, 1), first])[:, : columns.trained]
        found = sketch(subkey(group, "R"), models, size)
        own, start = found[:-1].reshape(*whole.shape[:2], size), found[-1:].expand(task.k, -1)
        if self.options.noise:
            noise = torch.stack([normal(subkey(each, "noise", task.secret), own[0].numel()) for each in nonces])
            own = own + self.options.noise / math.sqrt(size) * noise.reshape(own.shape).to(own)
        return {"sketch": own, "start_sketch": start}

    # Whether it may

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if find_spec("cryptography") is None:
            return "blind: cryptography is not installed, which makes the masks; pip install 'coterie[secure]'"
        inner = self.method.refusal(roster, model)
        return inner if inner is not None else self._why_not(roster, model)

    def _why_not(self, roster: Roster, model: Model) -> str | None:
        up, down = described(self.method.up), described(self.method.down)
        if not fields(self.method.up):
            return "blind: nothing leaves a silo, so there is nothing to hide from the server"
        if held(self.method.up) or held(self.method.down) or not all(about.has_columns for about in up.values()):
            return "blind: more than models leaves a silo, and a mask would not cover that"
        if any(about.kind == "bank" for about in down.values()):
            return "blind: its silos are sent each other's models, and not a mixture of them"
        if self.method.compares and not getattr(innermost(self.method), "common_init", True):
            return "blind: with starts apart the server has no sketches to begin with; give common_init = true"
        try:
            return self._tried(roster, model)
        except (BadInput, *NOT_LINEAR):
            return NOT_SUMS

    def _tried(self, roster: Roster, model: Model) -> str | None:
        """Hold the server's steps on coefficients against those on numbers, in rounds with all silos and with some."""
        exact = replace(self, options=replace(self.options, sketch=max(16, self.method.shared(model).trained)))
        plain, blind = self.method.open(roster, model), exact.open(roster, model)
        everyone = Cohort.everyone(roster, model, 0)
        columns, axes = self.method.shared(model), self.method.axes(roster, model)
        start, before = columns.take(model.start(roster.seed)), 0.0
        # The masks of the first round, each under one nonce for all silos: are they still there after the others?
        first = torch.tensor([[*subkey(bytes([1] * KEY), cell)] for cell in range(MOST_STARTS)]).to(blind.nonce)
        for round, step in enumerate((1, 1, 2)):
            cohort = replace(everyone, ids=everyone.ids[::step], round=round)
            draw = generator(roster.seed, "tried", round)
            shapes = {name: [axes[axis] for axis in about.axes] for name, about in described(self.method.up).items()}
            ups = {
                name: start + 0.1 * torch.from_numpy(draw.standard_normal((len(cohort), *shape))).to(start)
                for name, shape in shapes.items()
            }
            try:
                plain = self.method.receive(plain, cohort, self.method.up(**ups))
                sent = self.method.send(plain, everyone)
            except BadInput:
                return None  # made-up numbers, which a method may refuse that takes a silo's
            blind = exact.receive(blind, cohort, exact._unmasked(ups, columns, start, round))
            oldest = (blind.nonce[:, None] == first).all(2).any(1)
            weight = max(float(t[..., oldest].abs().max()) for t in coefficients(blind.inner)) if oldest.any() else 0.0
            if round and weight >= max(before, LEAST):
                return "blind: its server adds up the uploads of all rounds, and so all their masks; take secagg"
            before, masked = weight, exact.send(blind, everyone)
            for name, about in described(self.method.down).items():
                if about.has_columns:
                    found = self.options.fixed.decode(getattr(masked, name), torch.float64)
                    if not torch.allclose(found, getattr(sent, name).double(), rtol=TRIED, atol=TRIED):
                        return NOT_SUMS
        return None

    def _unmasked(self, ups: Mapping[str, Tensor], columns: Columns, start: Tensor, round: int) -> Any:
        """Uploads without masks, their sketches the models themselves: for the trial alone."""
        whole = torch.cat([t.reshape(len(t), -1, t.shape[-1]) for t in ups.values()], 1)
        made: dict[str, Tensor] = {name: self.options.fixed.encode(t) for name, t in ups.items()}
        made["nonce"] = torch.full((len(whole), KEY), round + 1, dtype=torch.uint8, device=whole.device)
        made["out_of_range"] = torch.zeros(len(whole), device=whole.device)
        if self.method.compares:
            missing = self.options.sketch - columns.trained
            made["sketch"] = F.pad(whole[..., : columns.trained], (0, missing)).double()
            made["start_sketch"] = F.pad(start[None, : columns.trained], (0, missing)).double()
        return self.up(**made)


OUT_OF_RANGE = About("0; not a number where its model is out of range, and nothing of it left", "rows", "number", ())
NO_KEY = "this silo has no key for it, and a simulation's is public; run the method by itself, under `coterie silo`"
MOST_STARTS = 64  # beside one for each silo
NOT_SUMS = "blind: its server does more with models than add them up, which it must be able to read them for"
_OPENED: WeakKeyDictionary[Record, tuple[bytes, Record]] = WeakKeyDictionary()  # a round opens what it is sent twice


def innermost(method: Method) -> Method:
    """The method inside all wrappers."""
    while isinstance(method, Wrapper):
        method = method.base
    return method


def group_key(task: Task) -> bytes:
    """The key that the silos of a run share; of a simulation it goes by the seed."""
    if task.secret and not task.group:
        raise BadInput(f"blind: {NO_KEY}")
    return task.group or subkey(b"simulation", task.seed)


def _mask(group: bytes, nonce: bytes | list[int], size: int) -> Tensor:
    return mask(subkey(group, "mask", bytes(nonce)), size)


def _nonce(task: Task, row: int, group: bytes, cipher: Tensor) -> bytes:
    """A keyed hash of what is to be hidden: the same only for the same."""
    key = subkey(group, "nonce", task.secret, task.names[row], task.round)
    return hashlib.blake2b(cipher.cpu().contiguous().numpy().data, key=key, digest_size=KEY).digest()


def _on(cohort: Cohort, server: Cells) -> Cohort:
    """The cohort with the stand-in for its model."""
    basis: Any = Basis(len(server.nonce), server.sketch, server.sketch.device)
    return replace(cohort, model=basis)


def with_columns(record: R, change: Any) -> R:
    """A server's record with all its coefficients changed."""
    named = {name: getattr(record, name) for name, about in described(record).items() if about.has_columns}
    return record.replace(**{name: change(t) for name, t in named.items() if t is not None})


def coefficients(record: Record) -> list[Tensor]:
    """All coefficients of a server's record, each (..., n)."""
    named = [getattr(record, name) for name, about in described(record).items() if about.has_columns]
    return [t for t in named if t is not None]


def _pruned(server: Cells) -> Cells:
    """The server without the masked models that are in none of its sums any more."""
    used = torch.stack([(t.abs() >= LEAST).reshape(-1, t.shape[-1]).any(0) for t in coefficients(server.inner)]).any(0)
    return Cells(
        cipher=server.cipher[used],
        nonce=server.nonce[used],
        sketch=server.sketch[used],
        inner=with_columns(server.inner, lambda t: t[..., used]),
    )


@cache
def _masked_up(kind: Any, compares: bool) -> Any:
    hidden = "nobody who has not the group key"
    made = {name: masked_field(about, seen_by=hidden) for name, about in described(kind).items()}
    made["nonce"] = About("which masks they have", "rows", "number", (str(KEY),), "server, all silos", below="256")
    made["out_of_range"] = OUT_OF_RANGE
    if compares:
        made["sketch"] = About(
            "secret sketches of its models", "rows", "number", ("q", "k"), "server, which knows no R"
        )
        made["start_sketch"] = About("that of the random start", "rows", "number", ("k",), "server, which knows no R")
    return record_of(kind.__name__, Up, "An upload that the server cannot read.", made)


@cache
def _masked_down(kind: Any) -> Any:
    made = dict[str, About]()
    for name, about in described(kind).items():
        made[name] = masked_field(about) if about.has_columns else about
        if about.has_columns:
            axes = (*about.axes[:-1], "cells")
            made[name + WEIGHTS] = replace(made[name], doc="the weights of the sum, in fixed point", axes=axes)
    made["nonces"] = About("which masks are in the sums", "shared", "number", ("cells", str(KEY)), below="256")
    return record_of(kind.__name__, Down, "What only a silo with the group key can open.", made)


def masked_field(about: About, seen_by: str = "") -> About:
    return replace(about, doc=f"{about.doc}, masked", role="number", below=MODULUS, seen_by=seen_by)
