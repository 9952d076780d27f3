"""What a silo holds, and what it is dealt from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import BadInput, shown

if TYPE_CHECKING:
    from coterie.data.own.agree import Difference
    from coterie.data.own.schema import Schema

Array = NDArray[Any]
Indices = NDArray[np.int64]
LONGEST_NAME = 200  # letters that say whose a sample is


@dataclass(frozen=True)
class Part:
    """One split of one silo."""

    x: Array  # (n, ...) float32, or int64 for tokens
    y: Array  # (n,) int64 labels or float32 targets; (n, t) for sequences

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Silo:
    """One organisation and its data."""

    name: str
    train: Part
    validation: Part
    test: Part
    group: int = field(default=0, kw_only=True)  # the silos of one group were dealt alike


@dataclass(frozen=True)
class Federated:
    """A federation's data, ready to train on."""

    silos: list[Silo]
    classes: int  # 0 for regression
    name: str
    note: str
    groups: list[int]  # of each silo
    dirty: list[bool]  # whether some of a silo's training labels were replaced
    schemas: "Mapping[str, Schema]" = field(default_factory=dict)  # of own data: how each silo's rows were encoded
    differences: "Sequence[Difference]" = ()  # of own data: how the silos' tables differ


@dataclass(frozen=True)
class Pool:
    """A data set before it is split among silos, its own train and test samples together."""

    name: str
    x: Array  # (N, ...)
    y: Array  # (N,) or (N, t)
    classes: int  # 0 for regression
    coarse: Indices | None = None  # (N,) super-class of each sample
    owner: Array | None = None  # (N,) who wrote or spoke it
    overlap: int = 0  # so many samples that follow one another have content in common, as windows of one text do

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Indices) -> "Pool":
        """The pool of these samples only."""
        coarse, owner = (None if a is None else a[indices] for a in (self.coarse, self.owner))
        return replace(self, x=self.x[indices], y=self.y[indices], coarse=coarse, owner=owner)


@dataclass(frozen=True)
class Share:
    """Where one silo's samples are in the pool."""

    train: Indices
    validation: Indices
    test: Indices
    group: int = 0


def deal(pool: Pool, shares: Sequence[Share]) -> list[Silo]:
    """The silos that hold these shares of the pool."""
    width = max(2, len(str(len(shares) - 1)))
    return [
        Silo(
            f"silo-{i:0{width}d}",
            train=_part(pool, share.train),
            validation=_part(pool, share.validation),
            test=_part(pool, share.test),
            group=share.group,
        )
        for i, share in enumerate(shares)
    ]


def check_silos(silos: Sequence[Silo], classes: int) -> None:
    """Refuse data no model can be trained on, before a run is spent on it."""
    for silo in silos:
        if not silo.name.isprintable() or not 0 < len(silo.name) <= LONGEST_NAME:
            raise BadInput(f"silo {shown(silo.name)}: a name is 1 to {LONGEST_NAME} printable letters; give it another")
        if len(silo.train) == 0:
            raise BadInput(f"{silo.name} train: no samples; give it some or leave the silo out")
        for split in ("train", "validation", "test"):
            _check_part(getattr(silo, split), classes, f"{silo.name} {split}")


def _part(pool: Pool, indices: Indices) -> Part:
    return Part(pool.x[indices], pool.y[indices])


def _check_part(part: Part, classes: int, where: str) -> None:
    if len(part.x) != len(part.y):
        raise BadInput(f"{where}: {len(part.x)} inputs but {len(part.y)} labels; give one label per input")
    check_finite(part.x, f"{where} inputs")
    if classes == 0:
        check_finite(part.y, f"{where} targets")
        return
    if not np.issubdtype(part.y.dtype, np.integer):
        raise BadInput(f"{where}: labels are {part.y.dtype}; give whole numbers from 0 to {classes - 1}")
    wrong = np.argwhere((part.y < 0) | (part.y >= classes))
    if len(wrong):
        raise BadInput(
            f"{where}: label {part.y[tuple(wrong[0])]} of sample {wrong[0][0]} is out of range; "
            f"labels run from 0 to {classes - 1}: correct it or raise the number of classes"
        )


def check_finite(values: Array, where: str) -> None:
    """Refuse NaN and infinity."""
    if np.issubdtype(values.dtype, np.integer) or np.isfinite(values).all():
        return
    bad = np.unique(np.argwhere(~np.isfinite(values))[:, 0])
    raise BadInput(f"{where}: NaN or infinity in {len(bad)} samples, first in {bad[0]}; clean or remove them")
