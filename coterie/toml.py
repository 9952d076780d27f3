"""Study files as text: what `tomllib` reads, written."""

import json
from collections.abc import Mapping
from typing import Any


def dumps(table: Mapping[str, Any]) -> str:
    """A table as TOML: plain keys first, then tables by their path."""
    return "\n".join(_lines(table, ())).strip() + "\n"


def value(item: Any) -> str:
    """One value as TOML."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return _text(item)
    if isinstance(item, float):
        return repr(float(item))
    if isinstance(item, int):
        return str(item)
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {value(v)}" for k, v in item.items() if v is not None) + "}"
    return "[" + ", ".join(value(v) for v in item) + "]"


def flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The values of a table and of those within it, by their keys as one writes them: train.lr."""
    values: dict[str, Any] = {}
    for key, item in table.items():
        values |= flat(item, f"{path}{key}.") if isinstance(item, Mapping) else {f"{path}{key}": item}
    return values


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping) or len(path) >= 2}
    inner = {k: v for k, v in table.items() if k not in plain}
    lines = ["", f"[{'.'.join(_key(part) for part in path)}]"] if path and (plain or not inner) else []
    lines += [f"{_key(k)} = {value(v)}" for k, v in plain.items() if v is not None]
    for k, v in inner.items():
        lines += _lines(v, (*path, k))
    return lines


def _key(name: str) -> str:
    return name if name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name) else _text(name)


def _text(text: str) -> str:
    # JSON's escapes are TOML's too, but TOML does not take DEL as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
