"""Study files as text: what `tomllib` reads, written."""

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(table: Mapping[str, Any]) -> str:
    """A table as TOML: plain keys first, then tables by their path."""
    return "\n".join(_lines(table, ())).strip() + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping) or len(path) >= 2}
    inner = {k: v for k, v in table.items() if k not in plain}
    lines = ["", f"[{'.'.join(_key(part) for part in path)}]"] if path and (plain or not inner) else []
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items() if value is not None]
    for key, value in inner.items():
        lines += _lines(value, (*path, key))
    return lines


def _key(name: str) -> str:
    return name if name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf") if math.isinf(value) else _float(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    return "[" + ", ".join(_value(v) for v in value) + "]"


def _float(value: float) -> str:
    text = repr(value)
    return text if any(c in text for c in ".e") else f"{text}.0"
