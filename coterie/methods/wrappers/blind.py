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

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engine.method import Cohort, Columns, Down, Model, Roster, Task, Up
from coterie.engine.wrapper import layers
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.methods.parts.coefficients import NOT_LINEAR, Basis, Opening, coefficients, with_coefficients
from coterie.methods.wrappers import hidden
from coterie.methods.wrappers.hidden import BYTE, MODULUS, Hiding, WithHiding
from coterie.options import option
from coterie.secure.fixed import FixedPoint, add_masks, as_weights, combined
from coterie.secure.masks import KEY, subkey
from coterie.secure.sketch import normal, sketch
from coterie.wire import About, Record, Server, described, record_of, shared

LEAST = 2.0**-25  # a weight below this is none in fixed point
MOST_STARTS = 64  # beside one for each silo
WEIGHTS = "_weights"
TRIED = 1e-3  # how far apart the same step may be on coefficients and on numbers, in single precision
NOT_SUMS = "blind: its server does more with models than add them up, which it must be able to read them for"
_OPENED: WeakKeyDictionary[Record, tuple[bytes, Record]] = WeakKeyDictionary()  # a round opens what it is sent twice


@dataclass(frozen=True)
class Blind(Hiding):
    """`blind = {}` in a method's table, or `[secure] level = "blind"` for all methods of a study."""

    sketch: int = option(256, "k, numbers of a silo's sketch, for methods that compare models", low=16, high=1 << 16)
    noise: float = option(0.0, "length of the random vector that is added to a sketch", low=0, below=math.inf)

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


@cache
def _masked_up(kind: Any, compares: bool) -> Any:
    made = hidden.masked_fields(kind, seen_by="nobody who has not the group key")
    made["nonce"] = About("which masks they have", "rows", "number", (str(KEY),), "server, all silos", below=BYTE)
    made["out_of_range"] = hidden.OUT_OF_RANGE
    if compares:
        seen = "server, which knows no R"
        made["sketch"] = About("secret sketches of its models", "rows", "number", ("q", "k"), seen)
        made["start_sketch"] = About("that of the random start, while it counts", "rows", "number", ("k",), seen)
    return record_of(kind.__name__, Up, "An upload that the server cannot read.", made)


@cache
def _masked_down(kind: Any) -> Any:
    made = hidden.masked_fields(kind)
    for name, about in described(kind).items():
        if about.has_columns:
            axes = (*about.axes[:-1], "cells")
            made[name + WEIGHTS] = replace(made[name], doc="the weights of the sum, in fixed point", axes=axes)
    made["nonces"] = About("which masks are in the sums", "shared", "number", ("cells", str(KEY)), below=BYTE)
    return record_of(kind.__name__, Down, "What only a silo with the group key can open.", made)


@dataclass(frozen=True, repr=False)
class WithBlind(WithHiding):
    """Any method whose silos send models alone, and whose server only adds them up."""

    summary = "the server computes on models that it cannot read"
    level = "blind"
    covered = "a mask"

    options: Blind

    up = property(lambda self: _masked_up(self.method.up, self.method.compares))
    down = property(lambda self: _masked_down(self.method.down))

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
            inner=with_coefficients(inner, lambda t: t[..., : len(starts)]),
        )

    def send(self, server: Cells, cohort: Cohort) -> Any:
        return self._sent(server, self.method.send(server.inner, _on(cohort, server)))

    def receive(self, server: Cells, cohort: Cohort, up: Any) -> Cells:
        wider, arrived, ciphers = self._wider(server, up)
        inner = self.method.receive(wider.inner, _on(cohort, wider), arrived)
        used = torch.stack([(t.abs() >= LEAST).reshape(-1, t.shape[-1]).any(0) for t in coefficients(inner)]).any(0)
        return Cells(
            cipher=_rows(ciphers, used),  # what is in none of the server's sums any more is forgotten
            nonce=wider.nonce[used],
            sketch=wider.sketch[used],
            inner=with_coefficients(inner, lambda t: t[..., used]),
        )

    def host(self, server: Cells, newcomers: Cohort, up: Any | None) -> Any:
        if up is None:
            return self._sent(server, self.method.host(server.inner, _on(newcomers, server), None))
        wider, arrived, ciphers = self._wider(server, up)
        down = self.method.host(wider.inner, _on(newcomers, wider), arrived)
        return self._sent(wider.replace(cipher=torch.cat(ciphers)), down)

    def trace(self, server: Cells, everyone: Cohort, private: Any) -> Mapping[str, Tensor]:
        return self.method.trace(server.inner, _on(everyone, server), None)

    def _wider(self, server: Cells, up: Any) -> tuple[Cells, Any, tuple[Tensor, Tensor]]:
        """The server with a new cell for each model that arrived, their coefficients, and masked models old and new."""
        arrived = {name: getattr(up, name) for name in described(self.method.up)}
        per_silo = [math.prod(t.shape[1:-1]) for t in arrived.values()]
        k, q, n = len(up.nonce), sum(per_silo), len(server.nonce)
        parts = [t.reshape(k, -1, t.shape[-1]) for t in arrived.values()]
        cipher = (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).flatten(0, 1)  # (k q, s)
        nonces = [list(subkey(bytes(each.tolist()), cell)) for each in up.nonce for cell in range(q)]
        sketches = server.sketch.new_zeros(k * q, server.sketch.shape[1])
        if self.method.compares:
            sketches = up.sketch.to(sketches).reshape(k * q, -1)
            public = (server.nonce == 0).all(1)
            server = server.replace(
                sketch=torch.where(public[:, None], up.start_sketch[:1].to(sketches), server.sketch)
            )
        ones = torch.eye(k * q, dtype=torch.float64, device=cipher.device).reshape(k, q, -1)
        own = F.pad(ones, (n, 0)).split(per_silo, 1)  # type: ignore[no-untyped-call]
        made = {name: part.reshape(*t.shape[:-1], -1) for (name, t), part in zip(arrived.items(), own, strict=True)}
        wider = server.replace(
            nonce=torch.cat([server.nonce, torch.tensor(nonces, dtype=torch.uint8, device=cipher.device)]),
            sketch=torch.cat([server.sketch, sketches]),
            inner=with_coefficients(server.inner, lambda t: F.pad(t, (0, k * q))),
        )
        return wider, self.method.up(**made), (server.cipher, cipher)

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

    def opened(self, task: Task, down: Any) -> Any:
        """What the method inside is sent: every sum without its masks."""
        group = group_key(task)
        known = _OPENED.get(down)
        if known is not None and known[0] == group:
            return known[1]
        kinds, nonces = described(self.method.down), [bytes(each) for each in down.nonces.tolist()]
        made = {name: getattr(down, name) for name in kinds}
        for name in (name for name, about in kinds.items() if about.has_columns):
            weights, total = getattr(down, name + WEIGHTS), made[name].clone()
            cells = [cell for cell, its in enumerate(nonces) if any(its) and bool(weights[..., cell].any())]
            add_masks(total, [_mask_key(group, nonces[cell]) for cell in cells], -weights[..., cells])
            made[name] = self.options.fixed.decode(total, task.model.dtype)
        opened = self.method.down(**made)
        _OPENED[down] = (group, opened)
        return opened

    def masked(self, task: Task, up: Any, down: Any) -> Any:
        (whole, out), group = self.flat(up), group_key(task)
        cipher, width = self.options.fixed.encode(whole), getattr(up, next(iter(described(self.method.up)))).shape[-1]
        nonces = [
            subkey(group, "nonce", task.secret, name, task.round, hidden.digest(row))
            for name, row in zip(task.names, whole, strict=True)
        ]
        for nonce, row in zip(nonces, cipher, strict=True):
            for cell, part in enumerate(row.split(width)):
                add_masks(part, [_mask_key(group, subkey(nonce, cell))], torch.ones(1, dtype=torch.int64).to(part))
        made = self.unflat(cipher, up) | {"out_of_range": out}
        made["nonce"] = torch.tensor([list(each) for each in nonces], dtype=torch.uint8, device=cipher.device)
        if self.method.compares:
            made |= self._sketched(task, group, whole.reshape(task.k, -1, width), nonces, down)
        return self.up(**made)

    def _sketched(self, task: Task, group: bytes, whole: Tensor, nonces: list[bytes], down: Any) -> dict[str, Tensor]:
        """The sketches of what is trained of models, and of the random start, while the server still holds that."""
        columns, size = self.method.shared(task.model), self.options.sketch
        starts = [columns.take(task.model.start(task.seed))[None]] if not bool(down.nonces.any(1).all()) else []
        models = torch.cat([whole.flatten(0, 1), *starts])[:, : columns.trained]
        found = F.pad(sketch(subkey(group, "R"), models, size), (0, 0, 0, 1 - len(starts)))
        own, start = found[:-1].reshape(*whole.shape[:2], size), found[-1:].expand(task.k, -1)
        if self.options.noise:
            noise = torch.stack([normal(subkey(each, "noise", task.secret), own[0].numel()) for each in nonces])
            own = own + self.options.noise / math.sqrt(size) * noise.reshape(own.shape).to(own)
        return {"sketch": own, "start_sketch": start}

    # Whether it may

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if (reason := super().refusal(roster, model)) is not None:
            return reason
        if any(about.kind == "bank" for about in described(self.method.down).values()):
            return "blind: its silos are sent each other's models, and not a mixture of them"
        if self.method.compares and not getattr(layers(self.method)[-1], "common_init", True):
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


def group_key(task: Task) -> bytes:
    """The key that the silos of a run share; of a simulation it goes by the seed."""
    hidden.check_keys("blind", task, task.group)
    return task.group or hidden.simulated(task)


def _mask_key(group: bytes, nonce: bytes) -> bytes:
    return subkey(group, "mask", nonce)


def _rows(parts: tuple[Tensor, ...], used: Tensor) -> Tensor:
    """Some rows of tables that lie below each other, copied only where they must be."""
    each = zip(parts, used.split([len(part) for part in parts]), strict=True)  # type: ignore[no-untyped-call]
    kept = [part if bool(its.all()) else part[its] for part, its in each if bool(its.any())]
    return kept[0] if len(kept) == 1 else torch.cat(kept)


def _on(cohort: Cohort, server: Cells) -> Cohort:
    """The cohort with the stand-in for its model."""
    basis: Any = Basis(len(server.nonce), server.sketch, server.sketch.device)
    return replace(cohort, model=basis)
