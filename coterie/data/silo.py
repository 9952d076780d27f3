"""What a silo holds, and what it is dealt from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import BadInput, shown

if TYPE_CHECKING:
    from coterie.data.own.agree import Difference
    from coterie.data.own.schema import Schema

Array = NDArray[Any]
Indices = NDArray[np.int64]
LONGEST_NAME = 200  # characters that say whose a sample is


class HoldsData:
    """What holds rows of data: shown in a few words without them, and never pickled."""

    def about(self) -> str:
        """What it is, in a few words."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.about()})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise BadInput(f"a {type(self).__name__} holds data and is not pickled; keep a result with result.save(folder)")


@dataclass(frozen=True, repr=False)
class Part(HoldsData):
    """One split of one silo."""

    x: Array  # (n, ...) float32, or int64 for tokens
    y: Array  # (n,) int64 labels or float32 targets; (n, t) for sequences
    rows: Indices | None = None  # (n,) of own data: where they are in what the silo holds, from 0
    units: Array | None = None  # (n,) a code that rows of one group share, where the silo has groups
    incumbent: Array | None = None  # (n, C) or (n,) what the silo's own model of today gives, where it has one

    def __len__(self) -> int:
        return len(self.y)

    def about(self) -> str:
        return f"{len(self)} samples of shape {self.x.shape[1:]}"

    def take(self, places: Indices) -> "Part":
        """Some of the samples."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: each[places] for name, each in held.items() if each is not None})


@dataclass(frozen=True, repr=False)
class Silo(HoldsData):
    """One organisation and its data."""

    name: str
    train: Part
    validation: Part
    test: Part
    group: int = field(default=0, kw_only=True)  # the silos of one group were dealt alike
    # Of its test rows, by column: (n,) text (None: missing) or numbers.
    subgroups: Mapping[str, Array] = field(default_factory=dict, kw_only=True)
    trees: "Mapping[str, Array] | None" = field(default=None, kw_only=True)  # its incumbent, where that is trees

    def about(self) -> str:
        train, validation, test = len(self.train), len(self.validation), len(self.test)
        return f"{self.name}: {train} to train, {validation} to validate, {test} to test"


def without_samples(silo: Silo) -> Silo:
    """The silo with zeros for samples, which take no memory: what it is called and its labels stay."""
    train, validation, test = (
        replace(part, x=np.broadcast_to(np.zeros((), part.x.dtype), part.x.shape))
        for part in (silo.train, silo.validation, silo.test)
    )
    return replace(silo, train=train, validation=validation, test=test)


@dataclass(frozen=True, repr=False)
class FederatedData(HoldsData):
    """A federation's data, ready to train on."""

    silos: list[Silo]
    classes: int  # 0 for regression
    name: str
    note: str
    groups: list[int]  # of each silo
    dirty: list[bool]  # whether some of a silo's training labels were replaced
    schemas: "Mapping[str, Schema]" = field(default_factory=dict)  # of own data: how each silo's rows were encoded
    differences: "Sequence[Difference]" = ()  # of own data: how the silos' tables differ

    def about(self) -> str:
        return f"{self.name}: {named([silo.name for silo in self.silos])}"


@dataclass(frozen=True, repr=False)
class Pool(HoldsData):
    """A data set before it is split among silos, its own train and test samples together."""

    name: str
    x: Array  # (N, ...)
    y: Array  # (N,) or (N, t)
    classes: int  # 0 for regression
    coarse: Indices | None = None  # (N,) super-class of each sample
    owner: Array | None = None  # (N,) who wrote or spoke it
    test: NDArray[np.bool_] | None = None  # (N,) which samples its publisher keeps for testing
    overlap: int = 0  # so many samples that follow one another have content in common, as windows of one text do

    def __len__(self) -> int:
        return len(self.y)

    def about(self) -> str:
        return f"{self.name}: {len(self)} samples of shape {self.x.shape[1:]}"

    def take(self, indices: Indices) -> "Pool":
        """The pool of these samples only."""
        beside = {"coarse": self.coarse, "owner": self.owner, "test": self.test}
        taken = {name: values[indices] for name, values in beside.items() if values is not None}
        return replace(self, x=self.x[indices], y=self.y[indices], **taken)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Share:
    """Where one silo's samples are in the pool."""

    train: Indices
    validation: Indices
    test: Indices
    group: int = 0


def named(silos: Sequence[str], most: int = 4) -> str:
    """How many silos, and the names of the first."""
    more = ", …" if len(silos) > most else ""
    return f"{len(silos)} silo{'s' * (len(silos) != 1)}: {', '.join(silos[:most])}{more}"


def deal(pool: Pool, shares: Sequence[Share]) -> list[Silo]:
    """The silos that hold these shares of the pool."""
    width, made = max(2, len(str(len(shares) - 1))), list[Silo]()
    for i, share in enumerate(shares):
        parts = [Part(pool.x[rows], pool.y[rows]) for rows in (share.train, share.validation, share.test)]
        made.append(Silo(f"silo-{i:0{width}d}", *parts, group=share.group))
    return made


def check_silos(silos: Sequence[Silo], classes: int) -> None:
    """Refuse data no model can be trained on, before a run is spent on it."""
    for silo in silos:
        if not silo.name.isprintable() or not 0 < len(silo.name) <= LONGEST_NAME:
            raise BadInput(
                f"silo {shown(silo.name)}: a name is 1 to {LONGEST_NAME} printable characters; give it another"
            )
        if len(silo.train) == 0:
            raise BadInput(f"{silo.name} train: no samples; give it some or leave the silo out")
        for split in ("train", "validation", "test"):
            _check_part(getattr(silo, split), classes, f"{silo.name} {split}")


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
