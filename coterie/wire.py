"""What lives where, as types: `Down` goes to a silo, `Up` leaves it, `Private` never does.

A record is a frozen dataclass of tensors. Each field says whether it has one row per silo (`rows`), is one for all
(`shared`), or is a bank of models that rows point into (`bank`), so that slicing, stacking, counting bytes and the page
`docs/wire.md` need to know nothing else about a method.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar, dataclass_transform

import torch
from torch import Tensor

Index = Tensor | slice
ALIGNED = 64  # bytes: where PyTorch puts what it makes


def rows(
    doc: str,
    *shape: str,
    seen_by: str = "",
    fixed: bool = False,
    change: bool = False,
    places: bool = False,
    whole: str = "",
    default: Any = dataclasses.MISSING,
) -> Any:
    """A field with one row per silo; `shape` is what a row looks like, in the paper's letters.

    `fixed` marks what a silo was given once and training does not change; `change` a difference of two models, which
    has the shape of a model and is none; `places` whole numbers that name silos of the roster; `whole` other whole
    numbers, and below which letter of a shape they are.
    """
    about = {"kind": "rows", "doc": doc, "shape": shape, "seen_by": seen_by, "fixed": fixed, "change": change}
    about |= {"places": places, "whole": "N" if places else whole}
    return dataclasses.field(default=default, metadata=about)


def shared(doc: str, *shape: str, seen_by: str = "", change: bool = False, whole: str = "") -> Any:
    """A field that is the same for every silo."""
    about = {"kind": "shared", "doc": doc, "shape": shape, "seen_by": seen_by, "change": change, "whole": whole}
    return dataclasses.field(metadata=about)


def bank(doc: str, *shape: str, picks: str, seen_by: str = "") -> Any:
    """Models held once, which each silo's row of the field `picks` points into (-1: none)."""
    about = {"kind": "bank", "doc": doc, "shape": ("n", *shape), "picks": picks, "seen_by": seen_by}
    return dataclasses.field(metadata=about)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(rows, shared, bank))
class Record:
    """A bundle of tensors; subclasses list their fields and are frozen dataclasses without saying so."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True, eq=False)(cls)

    def __fields(self) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
        for f in fields(self):  # type: ignore[arg-type]
            yield f.name, getattr(self, f.name), f.metadata

    def replace(self, **changes: Any) -> Self:
        """The same record with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same record with every tensor changed."""
        made = {
            name: value.map(change) if isinstance(value, Record) else None if value is None else change(value)
            for name, value, _ in self.__fields()
        }
        return self.replace(**made)

    def take(self, index: Index) -> Self:
        """Some of the silos' rows; what is shared stays whole."""
        made = {}
        for name, value, about in self.__fields():
            if isinstance(value, Record):
                made[name] = value.take(index)
            elif value is not None and about["kind"] == "rows":
                made[name] = value[index]
        return self.replace(**made)

    def put(self, index: Index, part: Self) -> Self:
        """This record with some of its rows replaced by those of `part`."""
        made = {}
        for name, value, about in self.__fields():
            new = getattr(part, name)
            if isinstance(value, Record):
                made[name] = value.put(index, new)
            elif value is not None and about["kind"] == "rows":
                whole = value.clone()
                whole[index] = new.to(whole.dtype)
                made[name] = whole
            else:
                made[name] = new
        return self.replace(**made)

    def one(self, row: int) -> Self:
        """What one silo is sent: its row, what is shared, and only the models of a bank that it points at."""
        alone = self.take(slice(row, row + 1))
        made: dict[str, Tensor] = {}
        for name, value, about in alone.__fields():
            if about.get("kind") == "bank":
                picks = getattr(alone, about["picks"])
                wanted, places = torch.unique(picks[picks >= 0], return_inverse=True)
                made[name] = value[wanted]
                made[about["picks"]] = picks.masked_scatter(picks >= 0, places.to(picks.dtype))
        return alone.replace(**made)

    def one_nbytes(self, row: int) -> int:
        """The bytes of `one(row)`, counted without copying the models of a bank."""
        alone = self.take(slice(row, row + 1))
        total = alone.nbytes()
        for _, value, about in alone.__fields():
            if about.get("kind") == "bank":
                picks = getattr(alone, about["picks"])
                spared = len(value) - len(torch.unique(picks[picks >= 0]))
                total -= spared * (value.nbytes // max(len(value), 1))
        return total

    def each_nbytes(self, k: int) -> int:
        """The bytes of `one(row)` for all of k rows."""
        if any(about.get("kind") == "bank" for _, _, about in self.__fields()):
            return sum(self.one_nbytes(row) for row in range(k))
        return k * self.one_nbytes(0) if k else 0

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name; those of an inner record as `outer.inner`."""
        named: dict[str, Tensor] = {}
        for name, value, _ in self.__fields():
            if isinstance(value, Record):
                named.update({f"{name}.{inner}": tensor for inner, tensor in value.tensors().items()})
            elif value is not None:
                named[name] = value
        return named

    def with_tensors(self, named: Mapping[str, Tensor]) -> Self:
        """The same record with the tensors that `tensors()` once gave (read back from a disk or a wire)."""
        made: dict[str, Any] = {}
        for name, value, _ in self.__fields():
            if isinstance(value, Record):
                prefix = f"{name}."
                inner = {key.removeprefix(prefix): t for key, t in named.items() if key.startswith(prefix)}
                made[name] = value.with_tensors(inner)
            elif value is not None:
                made[name] = named[name]
        return self.replace(**made)

    def settled(self) -> Self:
        """The same record as if read back from a disk: how tensors lie in memory decides the last bits of a sum."""
        return self.map(lambda t: t if t.is_contiguous() and t.data_ptr() % ALIGNED == 0 else _copied(t))

    def nbytes(self) -> int:
        """The bytes of all its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors().values())


def _copied(t: Tensor) -> Tensor:
    return t.clone(memory_format=torch.contiguous_format)


R = TypeVar("R", bound=Record)


def stack(parts: Sequence[R]) -> R:
    """Records of the same type as one, their rows one after another."""
    first = parts[0]
    if len(parts) == 1:
        return first
    made: dict[str, Any] = {}
    for f in fields(first):  # type: ignore[arg-type]
        values = [getattr(part, f.name) for part in parts]
        if isinstance(values[0], Record):
            made[f.name] = stack(values)
        elif values[0] is not None and f.metadata["kind"] == "rows":
            made[f.name] = torch.cat(values)
    return first.replace(**made)


def assembled(parts: Sequence[R], places: Sequence[Tensor]) -> R:
    """Records of the same type as one, the rows of each at its own places of the whole."""
    first, place = parts[0], torch.cat(list(places))
    if len(parts) == 1 and torch.equal(place, torch.arange(len(place), device=place.device)):
        return first
    made: dict[str, Any] = {}
    for f in fields(first):  # type: ignore[arg-type]
        values = [getattr(part, f.name) for part in parts]
        if isinstance(values[0], Record):
            made[f.name] = assembled(values, places)
        elif values[0] is not None and f.metadata["kind"] == "rows":
            whole = values[0].new_empty(len(place), *values[0].shape[1:])
            for value, own in zip(values, places, strict=True):
                whole[own] = value
            made[f.name] = whole
    return first.replace(**made)


class Down(Record):
    """What the server sends to a silo."""


class Up(Record):
    """What leaves a silo: the only type its encoder accepts."""


class Private(Record):
    """What a silo keeps from round to round and nobody else ever sees."""


class Server(Record):
    """What the server keeps from round to round."""


class State(Record):
    """What local training carries from one mini-batch to the next."""


class Predictor(Record):
    """A silo's model as it would be deployed: one model, or a mixture of the predictions of several."""

    models: Tensor = rows("the model, or the components of a mixture", "d or c × d")
    weights: Tensor | None = rows("the mixture's weights", "c", default=None)
