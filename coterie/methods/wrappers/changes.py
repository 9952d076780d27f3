"""What silos changed of the models they were sent: what clipping, noise and compression work on."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from coterie.engine.method import Columns, Method, Model
from coterie.wire import About, described

Bases = Mapping[str, str | None]


def bases(method: Method) -> Bases | None:
    """For each field that leaves, the field of `Down` that it is a changed copy of (None: it is the change itself).

    None where something else leaves too, or a model that is no changed copy of just one that was sent.
    """
    made: dict[str, str | None] = {}
    sent = {name: each for name, each in described(method.down).items() if each.role == "model" and each.kind != "bank"}
    for name, about in described(method.up).items():
        like = [each for each, its in sent.items() if its.axes == about.axes]
        if not about.has_columns or (about.role == "model" and len(like) != 1):
            return None
        made[name] = None if about.role == "change" else like[0]
    return made or None


def changes(up: Any, down: Any, base: Bases) -> dict[str, Tensor]:
    """What the silos changed, by the field that says so; tensors of their own."""
    return {
        name: getattr(up, name).clone() if sent is None else getattr(up, name) - getattr(down, sent)
        for name, sent in base.items()
    }


def columns_of(about: About, method: Method, model: Model) -> Columns:
    """The columns of a model that a field holds."""
    return method.shared(model) if about.columns == "shared" else model.columns("*")


def with_changes(changed: Mapping[str, Tensor], down: Any, base: Bases) -> dict[str, Tensor]:
    """The fields of an upload that says so."""
    return {name: t if base[name] is None else getattr(down, str(base[name])) + t for name, t in changed.items()}


def shapes_of(method: Method, down: Any, base: Bases) -> dict[str, tuple[int, ...]]:
    """The shape of one silo's change in each field, known by what it was sent."""
    made = {}
    for name, about in described(method.up).items():
        # A change that is none of a particular field is one of the first: all models of a method are alike.
        like: Tensor = getattr(down, base[name] or next(iter(described(method.down))))
        made[name] = tuple(like.shape[-len(about.axes) :])
    return made


REFUSAL = "what leaves a silo is not just a changed copy of one model that it was sent"
