"""Differential privacy: what leaves a silo is clipped, and noise hides what is left of its data.

The Gaussian mechanism on the silo itself (local, as McMahan et al., "Learning Differentially Private Recurrent
Language Models", ICLR 2018, have it on the server): all fields of an upload together are a change of length C at most,
and every number gets noise of deviation z C. So each upload is private on its own, before anybody sees it; what servers
and other silos make of it costs nothing more. `measure/spent.py` adds the rounds up, docs/privacy.md says what for.

A deployed silo draws the noise from a secret of its own and from the very change it hides: asked again for the same it
sends the same bits, and never is the same noise on two different changes, which would cancel it. A simulation has no
secret: its noise goes by the seed, and protects nobody.
"""

import hashlib
import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.engine.method import Method, Model, Roster, Task
from coterie.engine.wrapper import Wrapper
from coterie.methods.wrappers.changes import REFUSAL, bases, changes, columns_of, lengths, with_changes
from coterie.options import option
from coterie.wire import described


@dataclass(frozen=True)
class Privacy:
    """`privacy = {clip = 1.0, noise = 1.0, delta = 1e-5}` in a method's table."""

    clip: float = option(1.0, "C, the longest change that may leave a silo in a round", above=0)
    noise: float = option(1.0, "z; the noise on every number has the deviation z C", low=0, below=math.inf)
    delta: float = option(1e-5, "δ, for which ε is reported", above=0, below=1)

    def __post_init__(self) -> None:
        if self.noise and math.isinf(self.clip):
            raise ValueError("noise is a multiple of clip; give a finite clip, or noise = 0")


@dataclass(frozen=True)
class WithPrivacy(Wrapper):
    """Any method whose silos send back what they were sent, changed, and nothing else."""

    method: Method
    options: Privacy

    @property
    def base(self) -> Method:
        return self.method

    def end(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        up, kept = self.method.end(task, state, down, private)
        return self._noised(task, down, up), kept

    def adapt(self, task: Task, down: Any, private: Any | None) -> tuple[Any | None, Any]:
        up, kept = self.method.adapt(task, down, private)
        return None if up is None else self._noised(task, down, up), kept

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
            keys = [_key(task, row, [t[row] for t in whole.values()]) for row in range(task.k)]
            noise = torch.from_numpy(np.stack([gaussian(key, size) for key in keys])).to(next(iter(whole.values())))
            parts = noise.split([t[0].numel() for t in whole.values()], 1)  # type: ignore[no-untyped-call]
            for (name, t), part in zip(whole.items(), parts, strict=True):
                whole[name] = t + o.noise * o.clip * part.reshape(t.shape)
        return up.replace(**with_changes(whole, down, base))

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if bases(self.method) is None:
            return f"privacy: {REFUSAL}, so noise on that would not cover all that leaves"
        leaving = [columns_of(about, self.method, model) for about in described(self.method.up).values()]
        if any(columns.trained < columns.width for columns in leaving):
            return "privacy: BatchNorm's statistics describe the data they are of; take a model without them"
        if find_spec("dp_accounting") is None:
            return "privacy: dp-accounting is not installed, which adds up ε; pip install 'coterie[privacy]'"
        return self.method.refusal(roster, model)


def gaussian(key: bytes, size: int) -> np.ndarray:
    """Standard normal numbers that nobody without the key can tell from chance: SHAKE-256's stream, inverted."""
    from scipy.special import ndtri

    bits = np.frombuffer(hashlib.shake_256(key).digest(8 * size), "<u8")
    normal: np.ndarray = ndtri(((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
    return normal


def _key(task: Task, row: int, change: list[Tensor]) -> bytes:
    words = f"privacy,{task.seed},{task.round},{task.names[row]!r},{task.secret}".encode()
    if not task.secret:
        return words
    content = [hashlib.sha256(t.detach().cpu().contiguous().numpy().tobytes()).digest() for t in change]
    return b"".join([words, *content])
