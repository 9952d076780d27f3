"""Columns of a table by whose levels measures are taken; they may be features or not."""

from collections.abc import Mapping, Sequence

from pandas import DataFrame

from coterie.data.own.columns import as_number, as_text, kind_of
from coterie.data.own.gather import Holding
from coterie.data.silo import Array
from coterie.errors import BadInput, nearest

MOST = 20  # levels of text


def read_subgroups(holding: Holding, columns: Sequence[str], label: str) -> dict[str, Array]:
    """By column (n,) the value of each row: text, None where it is missing, or numbers."""
    found = {}
    for name in columns:
        where = f"silo '{holding.name}'"
        if name == label:
            raise BadInput(f"--subgroup {name}: is the label; give another column")
        frame = holding.x if isinstance(holding.x, DataFrame) and name in holding.x else holding.aside
        if name not in frame:
            raise BadInput(f"{where}: has no column {name!r} for --subgroup; {nearest(name, holding.columns)}")
        where = f"{where} column {name!r}"
        kind = kind_of(frame[name], where)
        if kind == "date":
            raise BadInput(f"--subgroup {name}: holds dates; give a column of text or numbers")
        found[name] = as_text(frame[name], where).to_numpy() if kind == "category" else as_number(frame[name], where)
    return found


def check_levels(silos: Sequence[Mapping[str, Array]]) -> None:
    """Refuse a column of text with more levels than a table can show."""
    for name in silos[0] if silos else ():
        levels = {value for silo in silos for value in silo[name] if silo[name].dtype == object and value is not None}
        if len(levels) > MOST:
            raise BadInput(f"--subgroup {name}: has {len(levels)} levels; give a column of {MOST} at most, or a number")
