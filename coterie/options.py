"""Typed, validated options: a frozen dataclass is the schema of a table of a study file.

Every option carries its default, its range and a sentence about itself, so the same declaration checks a study,
writes every default back into it, and prints `coterie methods NAME`.
"""

import dataclasses
import functools
import inspect
import math
import operator
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ParamSpec, TypeVar

from coterie.errors import BadInput, nearest, shown

T = TypeVar("T")
P = ParamSpec("P")
BOUNDS = {"low": operator.ge, "high": operator.le, "above": operator.gt, "below": operator.lt}


def option(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A field with a range: `low`/`high` are included, `above`/`below` are not."""
    rules = {"low": low, "high": high, "above": above, "below": below, "doc": doc}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: default.copy(), metadata=rules)
    return dataclasses.field(default=default, metadata=rules)


@dataclass(frozen=True)
class Option:
    """One option as a person reads it."""

    name: str
    type: str
    default: Any
    range: str
    doc: str


def describe(schema: type) -> list[Option]:
    """The options of a schema, in the order they are declared."""
    hints = _hints(schema)
    return [
        Option(f.name, _say(hints[f.name]), _default(f), _range(f.metadata), f.metadata.get("doc", ""))
        for f in fields(schema)
        if f.init
    ]


def parse(schema: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build `schema` from a table of a study file; `where` names the table in errors, e.g. `[train]`."""
    if not isinstance(values, Mapping):
        raise BadInput(f"{where}: expected a table, found {shown(values)}")
    known = {f.name: f for f in fields(schema) if f.init}  # type: ignore[arg-type]
    hints = _hints(schema)  # type: ignore[arg-type]
    check_keys(where, values, known)
    made = {}
    for name, f in known.items():
        if name in values:
            made[name] = _convert(values[name], hints[name], f"{where} {name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise BadInput(f"{where}: '{name}' is missing; {f.metadata.get('doc', '')}".rstrip("; "))
    try:
        return check(schema(**made), where)
    except ValueError as error:
        raise BadInput(f"{where}: {error}") from None


def check_keys(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name that is not known, with the nearest that is."""
    for key in given:
        if key not in known:
            raise BadInput(f"{where}: unknown key '{key}'; {nearest(str(key), known)}")


def keywords(
    where: str,
    schema: type | None = None,
    defaults: Mapping[str, Any] | None = None,
    elsewhere: Callable[[str, Mapping[str, Any]], None] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Refuse keywords that a function does not take, with the nearest that it does.

    The options of `schema` are keywords too and are listed in the docstring, with `defaults` instead of their own.
    `elsewhere` may refuse one before, in words of its own, by the arguments by name.
    """

    def decorate(call: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(call)
        own = [each.name for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        more = [each for each in (describe(schema) if schema else ()) if each.name not in own]
        known = {*own, *(each.name for each in more)} - {"self"}

        @functools.wraps(call)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            for key in kwargs:
                if elsewhere and key not in known:
                    elsewhere(key, signature.bind_partial(*args, **kwargs).arguments)
            check_keys(where, kwargs, known)
            return call(*args, **kwargs)

        listed = [f"    {each.name}={(defaults or {}).get(each.name, each.default)!r}: {each.doc}" for each in more]
        checked.__doc__ = "\n".join([inspect.getdoc(call) or "", *([""] if listed else []), *listed])
        return checked

    return decorate


def check(options: T, where: str = "") -> T:
    """Refuse values outside their ranges."""
    for f in fields(options):  # type: ignore[arg-type]
        _check_range(getattr(options, f.name), f.metadata, f"{where} {f.name}".strip())
    return options


def changed(options: Any) -> str:
    """What of it is not as it is by default, as it is given in Python: `clip=2.0, noise=0.5`."""
    known = ((f.name, getattr(options, f.name), _default(f)) for f in fields(options) if f.init)
    return ", ".join(f"{name}={value!r}" for name, value, default in known if value != default)


def resolved(options: Any) -> dict[str, Any]:
    """The table with every default written back; options that are None are left out."""
    table = {}
    for f in fields(options):
        value = getattr(options, f.name)
        if not f.init or value is None:
            continue
        if dataclasses.is_dataclass(value):
            value = resolved(value)
        elif isinstance(value, tuple):
            value = list(value)
        table[f.name] = value
    return table


@functools.cache
def _hints(schema: type) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def _default(f: "dataclasses.Field[Any]") -> Any:
    if f.default_factory is not MISSING:
        return f.default_factory()
    return None if f.default is MISSING else f.default


def _convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the hinted type, with the small courtesies of a hand-written file (3 for 3.0, a list for a tuple)."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for candidate in arguments:
            try:
                return _convert(value, candidate, where)
            except BadInput as error:
                if dataclasses.is_dataclass(candidate) and isinstance(value, Mapping):
                    raise error
        raise BadInput(f"{where}: expected {_say(hint)}, found {shown(value)}")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else parse(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise BadInput(f"{where}: expected a list, found {shown(value)}")
        return tuple(_convert(v, arguments[0], f"{where}[{i}]") for i, v in enumerate(value))
    if origin is typing.Literal:
        if value in arguments:
            return value
        hint_text = nearest(value, map(str, arguments)) if isinstance(value, str) else f"known: {_say(hint)}"
        raise BadInput(f"{where}: unknown value {shown(value)}; {hint_text}")
    if origin is dict:
        if not isinstance(value, Mapping):
            raise BadInput(f"{where}: expected a table, found {shown(value)}")
        return {str(k): _convert(v, arguments[1], f"{where}.{k}") for k, v in value.items()}
    if hint is Any:
        return value
    if hint is type(None):
        if value is None:
            return None
    elif hint is float:
        if isinstance(value, float) and not math.isnan(value):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            return float(value)
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
            return value
    elif isinstance(value, hint):
        return value
    raise BadInput(f"{where}: expected {_say(hint)}, found {shown(value)}")


def _check_range(value: Any, rules: Mapping[str, Any], where: str) -> None:
    if isinstance(value, tuple):
        for i, v in enumerate(value):
            _check_range(v, rules, f"{where}[{i}]")
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    for bound, holds in BOUNDS.items():
        if rules.get(bound) is not None and not holds(value, rules[bound]):
            raise BadInput(f"{where}: {shown(value)} is out of range; allowed: {_range(rules)}")


def _range(rules: Mapping[str, Any]) -> str:
    low, above, high, below = (rules.get(k) for k in ("low", "above", "high", "below"))
    left = f"[{low:g}" if low is not None else f"({above:g}" if above is not None else ""
    right = f"{high:g}]" if high is not None else f"{below:g})" if below is not None else ""
    if not left and not right:
        return ""
    return f"{left or '(-inf'}, {right or 'inf)'}"


def _say(hint: Any) -> str:
    """A type as a user calls it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_say(a) for a in arguments if a is not type(None))
    if origin is typing.Literal:
        *others, last = (f'"{a}"' for a in arguments)
        return f"{', '.join(others)} or {last}" if others else last
    if origin is tuple:
        inner = _say(arguments[0])
        return f"list of {inner}s" if inner.endswith("number") else f"list of {inner.replace('list', 'lists', 1)}"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "table"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(hint, str(hint))
