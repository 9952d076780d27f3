"""Differential privacy: what leaves a silo hides all its data (`level = "silo"`), or each of its records (`"record"`).

A silo: the Gaussian mechanism on the silo itself (local, as McMahan et al., "Learning Differentially Private Recurrent
Language Models", ICLR 2018, have it on the server): all fields of an upload together are a change of length C at most,
and every number gets noise of deviation z C. So each upload is private on its own, before anybody sees it; what servers
and other silos make of it costs nothing more. `spent.py` adds the rounds up, docs/privacy.md says what for.

A record: the gradients of a round's training are those of DP-SGD (`engine/dpsgd.py`), so uploads need no noise of their
own. It is for methods in which nothing else carries a silo's data into its uploads.

A deployed silo draws the noise from a secret of its own and from the very change it hides: asked again for the same it
sends the same bits, and never is the same noise on two different changes, which would cancel it. A simulation has no
secret: its noise goes by the seed, and protects nobody.
"""

import hashlib
import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.engine.dpsgd import DPSGD, sampling
from coterie.engine.method import Batch, Method, Model, Roster, Task
from coterie.engine.wrapper import Wrapper
from coterie.errors import BadInput
from coterie.keys import gaussian
from coterie.methods.parts.attention import lengths
from coterie.methods.wrappers.accounting import Mechanism, noise_for
from coterie.methods.wrappers.changes import REFUSAL, bases, changes, columns_of, with_changes
from coterie.options import option
from coterie.wire import described


@dataclass(frozen=True)
class Privacy:
    """`privacy = {clip = 1.0, noise = 1.0, delta = 1e-5}` in a method's table."""

    level: Literal["silo", "record"] = option("silo", "what is hidden: all data of a silo, or each of its records")
    clip: float = option(
        1.0, "C, the longest change that may leave a silo in a round; of level record the longest gradient", above=0
    )
    noise: float | None = option(
        None, "z; the noise on every number has the deviation z C; none: 1, or as epsilon needs", low=0, below=math.inf
    )
    epsilon: float | None = option(
        None, "of level record instead of noise: ε of each silo's planned rounds of one seed", above=0, below=math.inf
    )
    delta: float = option(1e-5, "δ, for which ε is reported", above=0, below=1)

    def __post_init__(self) -> None:
        if self.epsilon is not None and (self.noise is not None or self.level == "silo"):
            raise ValueError("epsilon takes the place of noise, and is for level = 'record'; give noise alone")
        if self.epsilon is None and self.noise is None:
            object.__setattr__(self, "noise", 1.0)
        if self.noise != 0 and math.isinf(self.clip):
            raise ValueError("noise is a multiple of clip; give a finite clip, or noise = 0")

    def mechanism(self, samples: int, batch: int, epochs: int, rounds: int) -> tuple[Mechanism, int]:
        """What a silo of so many samples uses in a round, and how often; `rounds` are those of the whole run."""
        if self.level == "silo":
            # Replacing all data turns a change of length C around at most: 2 C, under noise of deviation z C.
            return (1.0, (self.noise or 0.0) / 2), 1
        q, steps = sampling(samples, batch, epochs)
        if self.noise is not None:
            return (q, self.noise), steps
        assert self.epsilon is not None
        return (q, noise_for(self.epsilon, self.delta, q, steps * rounds)), steps


@dataclass(frozen=True, repr=False)
class WithPrivacy(Wrapper):
    """Any method whose silos send back what they were sent, changed, and nothing else; of records, `by_gradients`."""

    method: Method
    options: Privacy

    def step(self, task: Task, state: Any, batch: Batch) -> Any:
        assert self.options.level == "silo" or task.dpsgd is not None, "a loop without the noise that hides records"
        return self.method.step(task, state, batch)

    def end(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        up, kept = self.method.end(task, state, down, private)
        return up if self.options.level == "record" else self._noised(task, down, up), kept

    def dpsgd(self, task: Task) -> DPSGD | None:
        o = self.options
        if o.level == "silo":
            return self.method.dpsgd(task)
        sizes = [max(1, int(n)) for n in task.store["train"].count]
        found = [o.mechanism(n, task.batch_size, task.epochs, task.rounds)[0][1] for n in sizes]
        return DPSGD(o.clip, torch.tensor(found, dtype=torch.float64, device=task.store.device))

    def adapt(self, task: Task, down: Any, private: Any | None) -> tuple[Any | None, Any]:
        up, kept = self.method.adapt(task, down, private)
        if up is None:
            return None, kept
        if self.options.level == "record":
            raise BadInput(
                "privacy: level = 'record' covers rounds, not what this method's newcomers upload on arrival"
            )
        return self._noised(task, down, up), kept

    def _noised(self, task: Task, down: Any, up: Any) -> Any:
        o, base = self.options, bases(self.method) or {}
        if not o.noise and math.isinf(o.clip):
            return up
        # A number that is none would pass clip and noise as it is, and tell of the data: it counts as no change.
        changed = {name: t.nan_to_num(0.0, 0.0, 0.0) for name, t in changes(up, down, base).items()}
        length = lengths(torch.stack([lengths(t.flatten(1)) for t in changed.values()], 1))  # (k,), of all fields
        scale = torch.where(length <= o.clip, 1.0, o.clip / length)
        whole = {name: (t * scale.reshape(-1, *[1] * (t.ndim - 1))).to(t.dtype) for name, t in changed.items()}
        if o.noise:
            size = sum(t[0].numel() for t in whole.values())
            keys = [_key(task, row, o, [t[row] for t in whole.values()]) for row in range(task.k)]
            noise = torch.from_numpy(np.stack([gaussian(key, size) for key in keys])).to(next(iter(whole.values())))
            parts = noise.split([t[0].numel() for t in whole.values()], 1)  # type: ignore[no-untyped-call]
            for (name, t), part in zip(whole.items(), parts, strict=True):
                whole[name] = t + o.noise * o.clip * part.reshape(t.shape)
        return up.replace(**with_changes(whole, down, base))

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if find_spec("dp_accounting") is None:
            return "privacy: dp-accounting is not installed, which adds up ε; pip install 'coterie[privacy]'"
        of_level = self._record_refusal(model) if self.options.level == "record" else self._silo_refusal(model)
        return of_level or self.method.refusal(roster, model)

    def _record_refusal(self, model: Model) -> str | None:
        if not self.method.by_gradients:
            return (
                "privacy: of level record noise is on one gradient of each batch, and more than that carries this "
                "method's data into its uploads, or nothing does; take level = 'silo', or another method"
            )
        if model.layout.buffers or model.couples_samples:
            return (
                "privacy: BatchNorm makes a sample's gradient depend on the others of its batch, so there is none of "
                "one record to clip; take a model without it"
            )
        return None

    def _silo_refusal(self, model: Model) -> str | None:
        if bases(self.method) is None:
            return f"privacy: {REFUSAL}, so noise on that would not cover all that leaves"
        leaving = [columns_of(about, self.method, model) for about in described(self.method.up).values()]
        if any(columns.trained < columns.width for columns in leaving):
            return (
                "privacy: BatchNorm's statistics, which would leave, describe the data they are of; keep them on the "
                "silos ([train] buffers = 'local' or fedbn), or take a model without them"
            )
        return None


def _key(task: Task, row: int, options: Privacy, change: list[Tensor]) -> bytes:
    key = f"privacy,{task.seed},{task.round},{task.names[row]!r},{task.secret}".encode()
    if not task.secret:
        return key
    # Of one change at two scales of noise, two uploads with the same draws would give both away.
    content = [hashlib.sha256(t.detach().cpu().contiguous().numpy().tobytes()).digest() for t in change]
    return b"".join([key, repr(options).encode(), *content])
