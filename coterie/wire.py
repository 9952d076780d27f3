"""What lives where, as types: `Down` goes to a silo, `Up` leaves it, `Private` never does.

A record is a frozen dataclass of tensors. Each field says whether it has one row per silo (`rows`), is one for all
(`shared`), or is a bank of models that rows point into (`bank`), and what it is (`role`): slicing, stacking, counting
bytes, checking, clipping, noise, compression and the page `docs/wire.md` go by that, and by nothing else of a method.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, dataclass_transform

import torch
from torch import Tensor, nn

R = TypeVar("R", bound="Record")
Index = Tensor | slice
Role = Literal["model", "change", "number", "silo"]
Which = Literal["all", "shared"]
ALIGNED = 64  # bytes: where PyTorch puts what it makes


@dataclass(frozen=True)
class About:
    """What a field of a record is.

    A `model` and a `change` (a difference of two models, a gradient) have the columns of a model as their last axis; a
    `silo` is whole numbers that name silos of the roster; anything else is a `number`.
    """

    doc: str
    kind: Literal["rows", "shared", "bank"]
    role: Role
    axes: tuple[str, ...]  # of one row, or of the whole where it is shared, in the paper's symbols; "c?" may be absent
    seen_by: str = ""
    fixed: bool = False  # what a silo was given once and training does not change
    below: str = ""  # whole numbers, and below the length of which axis they are
    picks: str = ""  # of a bank: the field whose rows point into it
    columns: Which = "all"  # of a model's: all, or those that the method shares

    @property
    def has_columns(self) -> bool:
        """Whether its last axis is the columns of a model."""
        return self.role in ("model", "change")

    @property
    def shape(self) -> str:
        """Its axes for people to read."""
        whole = " × ".join(axis.rstrip("?") for axis in self.axes)
        short = " × ".join(axis for axis in self.axes if not axis.endswith("?"))
        return whole if whole == short else f"{short} or {whole}"


def rows(
    doc: str,
    *axes: str,
    role: Role = "number",
    seen_by: str = "",
    fixed: bool = False,
    below: str = "",
    columns: Which = "all",
    default: Any = dataclasses.MISSING,
) -> Any:
    """A field with one row per silo; `axes` are those of a row, but for the columns of a model."""
    below = "N" if role == "silo" else below
    return _field(About(doc, "rows", role, _axes(axes, role, columns), seen_by, fixed, below, columns=columns), default)


def shared(
    doc: str, *axes: str, role: Role = "number", seen_by: str = "", below: str = "", columns: Which = "all"
) -> Any:
    """A field that is the same for every silo."""
    return _field(About(doc, "shared", role, _axes(axes, role, columns), seen_by, below=below, columns=columns))


def bank(doc: str, *axes: str, picks: str, seen_by: str = "") -> Any:
    """Models held once, which each silo's row of the field `picks` points into (-1: none)."""
    return _field(About(doc, "bank", "model", ("n", *_axes(axes, "model")), seen_by, picks=picks))


def _axes(axes: tuple[str, ...], role: Role, columns: Which = "all") -> tuple[str, ...]:
    return (*axes, "d" if columns == "all" else "s") if role in ("model", "change") else axes


def _field(about: About, default: Any = dataclasses.MISSING) -> Any:
    return dataclasses.field(default=default, metadata={"about": about})


def record_of(name: str, base: type[R], doc: str, about: Mapping[str, About]) -> type[R]:
    """A type of record with these fields."""
    made = {"__module__": base.__module__, "__doc__": doc, "__annotations__": dict.fromkeys(about, Tensor)}
    made |= {each: _field(its) for each, its in about.items()}
    return type(name, (base,), made)


@cache
def with_shared_columns(kind: Any) -> Any:
    """The type of a record with the shared columns alone of every model in it."""
    made = {
        name: replace(
            about, doc=f"{about.doc} (the columns that are shared)", axes=(*about.axes[:-1], "s"), columns="shared"
        )
        for name, about in described(kind).items()
        if about.role == "model" and about.columns == "all"
    }
    return record_of(kind.__name__, kind, kind.__doc__, made) if made else kind


def described(record: "Record | type[Record]") -> dict[str, About]:
    """What each field of a record is; not of records inside it."""
    return {f.name: f.metadata["about"] for f in fields(record) if f.metadata}  # type: ignore[arg-type]


def held(record: "Record | type[Record]") -> "dict[str, type[Record]]":
    """The types of the records that a record holds: those it declares or, of a record that is made, those it has."""
    kinds = {f.name: f.type if isinstance(record, type) else type(getattr(record, f.name)) for f in fields(record)}  # type: ignore[arg-type]
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Record)}


def every_field(record: "Record | type[Record]") -> dict[str, About]:
    """What each field of a record is, and of the records that it holds as `outer.inner`."""
    found = described(record)
    for name, kind in held(record).items():
        inner = kind if isinstance(record, type) else getattr(record, name)
        found |= {f"{name}.{each}": about for each, about in every_field(inner).items()}
    return found


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(rows, shared, bank))
class Record:
    """A bundle of tensors; subclasses list their fields and are frozen dataclasses without saying so."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)

    def __repr__(self) -> str:
        """By the shapes of its tensors: what they hold may be private."""
        shapes = (f"{name} {tuple(tensor.shape)}" for name, tensor in self.tensors().items())
        return f"{type(self).__name__}({', '.join(shapes)})"

    def __fields(self) -> Iterator[tuple[str, Any, str]]:
        """Name, value and kind of each; the kind of an inner record is none."""
        for f in fields(self):  # type: ignore[arg-type]
            yield f.name, getattr(self, f.name), f.metadata["about"].kind if f.metadata else ""

    def replace(self, **changes: Any) -> Self:
        """The same record with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def change(self, rule: Callable[[Tensor, About], Tensor]) -> Self:
        """The same record with every tensor changed by what it is, those of inner records too."""
        return merged([self], lambda found, about: rule(found[0], about))

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same record with every tensor changed."""
        return self.change(lambda t, _: change(t))

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same record with its rows changed, and what is not rows as it was."""
        return self.change(lambda t, about: change(t) if about.kind == "rows" else t)

    def take(self, index: Index) -> Self:
        """Some of the silos' rows; what is shared stays whole."""
        return self.map_rows(lambda t: t[index])

    def put(self, index: Index, part: Self) -> Self:
        """This record with some of its rows replaced by those of `part`."""
        made = {}
        for name, value, kind in self.__fields():
            new = getattr(part, name)
            if isinstance(value, Record):
                made[name] = value.put(index, new)
            elif value is not None and kind == "rows":
                whole = value.clone()
                whole[index] = new.to(whole.dtype)
                made[name] = whole
            else:
                made[name] = new
        return self.replace(**made)

    def one(self, row: int) -> Self:
        """What one silo is sent: its row, what is shared, and only the models of a bank that it points at."""
        alone = self.take(slice(row, row + 1))
        made: dict[str, Any] = {name: getattr(self, name).one(row) for name in held(self)}
        for name, about in described(self).items():
            if about.kind == "bank":
                picks = getattr(alone, about.picks)
                wanted, places = torch.unique(picks[picks >= 0], return_inverse=True)
                made[name] = getattr(alone, name)[wanted]
                made[about.picks] = picks.masked_scatter(picks >= 0, places.to(picks.dtype))
        return alone.replace(**made)

    def one_nbytes(self, row: int) -> int:
        """The bytes of `one(row)`, counted without copying the models of a bank."""
        alone = self.take(slice(row, row + 1))
        total: int = alone.nbytes()
        total += sum(getattr(self, name).one_nbytes(row) - getattr(alone, name).nbytes() for name in held(self))
        for name, about in described(self).items():
            if about.kind == "bank":
                value, picks = getattr(alone, name), getattr(alone, about.picks)
                spared = len(value) - len(torch.unique(picks[picks >= 0]))
                total -= spared * (value.nbytes // max(len(value), 1))
        return total

    def each_nbytes(self, k: int) -> int:
        """The bytes of `one(row)` for all of k rows."""
        if any(about.kind == "bank" for about in every_field(self).values()):
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
                made[name] = value.with_tensors(under(f"{name}.", named))
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


def merged(parts: Sequence[R], rule: Callable[[list[Tensor], About], Tensor]) -> R:
    """Records of the same type as one: each tensor from those of all and what it is, those of inner records too."""
    made: dict[str, Any] = {}
    for f in fields(parts[0]):  # type: ignore[arg-type]
        values = [getattr(part, f.name) for part in parts]
        if isinstance(values[0], Record):
            made[f.name] = merged(values, rule)
        elif values[0] is not None:
            made[f.name] = rule(values, f.metadata["about"])
    return parts[0].replace(**made)


def stack(parts: Sequence[R]) -> R:
    """Records of the same type as one, their rows one after another."""
    if len(parts) == 1:
        return parts[0]
    return merged(parts, lambda found, about: torch.cat(found) if about.kind == "rows" else found[0])


def assembled(parts: Sequence[R], places: Sequence[Tensor]) -> R:
    """Records of the same type as one, the rows of each at its own places of the whole."""
    place = torch.cat(list(places))
    if len(parts) == 1 and torch.equal(place, torch.arange(len(place), device=place.device)):
        return parts[0]
    return merged(parts, lambda found, about: placed(found, places) if about.kind == "rows" else found[0])


def placed(values: Sequence[Tensor], places: Sequence[Tensor]) -> Tensor:
    """Several tensors as one, the rows of each at its own places of the whole."""
    whole = values[0].new_empty(sum(map(len, places)), *values[0].shape[1:])
    for value, place in zip(values, places, strict=True):
        whole[place] = value
    return whole


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


class Network(Protocol):
    """What a predictor needs of a model: rows as a function, and a row as a module."""

    classes: int

    def forward(self, rows: Tensor, x: Tensor, training: bool) -> tuple[Tensor, Tensor | None]:
        """Outputs (k, b, ...) of k rows on their own batches x (k, b, ...), and the buffers after them."""

    def module_of(self, row: Tensor) -> nn.Module:
        """A module of its own with the weights of one row."""


Form = str | list[Any]  # a kind of predictor, or with it the forms of those inside: ["ensemble", "model", "model"]
Build = Callable[[dict[str, Tensor]], nn.Module]  # makes the plain network with these weights


class Deployable(Record):
    """Silos' models as they would be deployed; a kind says how it predicts, and what is written of it."""

    kind: ClassVar[str]  # its name in `engine/predictors.py`, and in a model's file

    @property
    def count(self) -> int:
        """How many silos' they are."""
        return len(next(iter(self.tensors().values())))

    @property
    def form(self) -> Form:
        """Its kind, and what it takes to read it back."""
        return self.kind

    @property
    def networks(self) -> int:
        """How many networks each sample goes through."""
        raise NotImplementedError

    def predict(self, model: Network, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """Class probabilities (k, b, C, ...), or values for regression, on x (k, b, ...).

        `beside` is what the silos' own models of today give for x, where they have some.
        """
        raise NotImplementedError

    def held_out(self, samples: slice) -> "Deployable":
        """The models that judge these validation samples: of what was fitted on them, without the sample's own part."""
        return self

    def module(self, model: Network, row: int) -> nn.Module:
        """One silo's as a module of its own, which gives the same for x (n, ...)."""
        raise NotImplementedError

    def written(self, model: Network, row: int) -> dict[str, Tensor]:
        """What a silo's file holds, by name."""
        return dict(self.module(model, row).state_dict())

    @classmethod
    def read(cls, form: Form, tensors: dict[str, Tensor], build: Build, classes: int) -> nn.Module:
        """The module whose tensors were `written`."""
        raise NotImplementedError

    @classmethod
    def restore(cls, form: Form, tensors: Mapping[str, Tensor]) -> Self:
        """The record whose `tensors()` these are."""
        return cls(**tensors)


class Predictor(Deployable):
    """A silo's model as it would be deployed: one model, or a mixture of the predictions of several."""

    kind: ClassVar[str] = "model"

    models: Tensor = rows("the model, or the components of a mixture", "c?", role="model")
    weights: Tensor | None = rows("the mixture's weights", "c", default=None)

    @property
    def networks(self) -> int:
        return self.models.shape[1] if self.models.ndim == 3 else 1

    def predict(self, model: Network, x: Tensor, beside: Tensor | None = None) -> Tensor:
        flat = self.models.reshape(-1, self.models.shape[-1])
        each = x if self.networks == 1 else x.repeat_interleave(self.networks, 0)
        out, _ = model.forward(flat, each, training=False)
        out = out.softmax(2) if model.classes else out
        if self.weights is None:
            return out
        return torch.einsum("kc,kc...->k...", self.weights, out.reshape(*self.models.shape[:2], *out.shape[1:]))

    def module(self, model: Network, row: int) -> nn.Module:
        if self.weights is None:
            return Mixed([model.module_of(self.models[row]).cpu()], None, model.classes)
        components = [model.module_of(each).cpu() for each in self.models[row]]
        return Mixed(components, self.weights[row].cpu(), model.classes)

    def written(self, model: Network, row: int) -> dict[str, Tensor]:
        """A model by the names of its module; a mixture's components are numbered, beside their `mixture`."""
        if self.weights is not None:
            return super().written(model, row)
        return dict(model.module_of(self.models[row]).state_dict())

    @classmethod
    def read(cls, form: Form, tensors: dict[str, Tensor], build: Build, classes: int) -> nn.Module:
        weights = tensors.get(Mixed.WEIGHTS)
        if weights is None or weights.ndim != 1:
            return Mixed([build(tensors)], None, classes)
        return Mixed([build(under(f"component{c}.", tensors)) for c in range(len(weights))], weights, classes)


class Mixed(nn.Module):
    """A network's predictions, or a mixture of those of several."""

    WEIGHTS = "mixture"

    def __init__(self, components: Sequence[nn.Module], weights: Tensor | None, classes: int) -> None:
        super().__init__()
        self.components, self.classes = list(components), classes
        for c, component in enumerate(components):
            self.add_module(f"component{c}", component)
        self.register_buffer(self.WEIGHTS, torch.ones(1) if weights is None else weights)

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """(n, C, ...) probabilities, or (n, ...) numbers."""
        outputs = [component(x) for component in self.components]
        outputs = [out.softmax(1) for out in outputs] if self.classes else outputs
        return weighted_sum(self.get_buffer(self.WEIGHTS), outputs)


def weighted_sum(weights: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """Σ_c weights_c outputs_c, of at least one."""
    first, *others = (weight * out for weight, out in zip(weights.unbind(), outputs, strict=True))
    return sum(others, start=first)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, by what is left of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
