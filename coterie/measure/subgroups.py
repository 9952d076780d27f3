"""How well models do in parts of the test rows: by the levels of a column, or by the quarters of a number."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from coterie.measure.measures import Array, measure_of
from coterie.measure.paired import interval
from coterie.measure.predictions import Predictions, Rows, joined

Place = tuple[int, str]  # seed and silo
FEWEST = 10  # rows of a group that is measured
FEW_NUMBERS = 6  # different ones, up to which each is a level of its own
MISSING = "missing"
COLUMNS = ["method", "column", "level", "silo", "n", "measure", "value", "low", "high"]


def subgroups(predictions: Predictions, columns: Mapping[str, Mapping[Place, Array]], by: str) -> DataFrame:
    """Every measure of every method by level, of each silo and (silo: None) of all; `by` has an interval.

    `columns` have the value of each test row. Values are means over seeds; of fewer than 10 rows there are none.
    """
    parts = [
        DataFrame(list(_of_level(predictions, column, level, levels, by)), columns=COLUMNS)
        for column, values in columns.items()
        for names, levels in [as_levels(values)]
        for level in names
    ]
    return pd.concat(parts, ignore_index=True) if parts else DataFrame(columns=COLUMNS)


def as_levels(values: Mapping[Place, Array]) -> tuple[list[str], dict[Place, Array]]:
    """The levels in order, and that of each row; numbers are cut at the quartiles of all rows together."""
    if any(each.dtype.kind != "f" for each in values.values()):
        found = {
            place: np.array([MISSING if v is None or v != v else str(v) for v in each])
            for place, each in values.items()
        }
        return sorted({str(name) for each in found.values() for name in each}, key=lambda n: (n == MISSING, n)), found
    whole = np.concatenate(list(values.values()))
    known = np.unique(whole[~np.isnan(whole)])
    if len(known) <= FEW_NUMBERS:
        cuts, names = known, [f"{value:g}" for value in known]
    else:
        cuts = np.unique(np.quantile(whole[~np.isnan(whole)], (0.25, 0.5, 0.75)))
        between = [f"above {low:.4g}, up to {high:.4g}" for low, high in pairwise(cuts)]
        names = [f"up to {cuts[0]:.4g}", *between, f"above {cuts[-1]:.4g}"]
    names += [MISSING]
    return names, {
        place: np.array(names)[np.where(np.isnan(each), len(names) - 1, np.searchsorted(cuts, each))]
        for place, each in values.items()
    }


def as_table(found: DataFrame, by: str) -> dict[str, Any]:
    """The same as `summary.json` has it: by column and level the rows and methods, of all and of each silo."""
    table: dict[str, Any] = {}
    for (column, level), part in found.groupby(["column", "level"], sort=False):
        whole = _entry(part[part["silo"].isna()], by)
        silos = {str(silo): _entry(mine, by) for silo, mine in part.groupby("silo", sort=False)}
        table.setdefault(str(column), {})[str(level)] = {**whole, "silos": silos}
    return table


def _entry(part: DataFrame, by: str) -> dict[str, Any]:
    count, known = int(part["n"].iloc[0]), part[part["measure"].notna()]
    methods: dict[str, Any] = {}
    for method, mine in known.groupby("method", sort=False):
        own = mine[mine["measure"] == by].iloc[0]
        every = {str(name): float(value) for name, value in zip(mine["measure"], mine["value"], strict=True)}
        methods[str(method)] = {key: float(own[key]) for key in ("value", "low", "high")} | {"measures": every}
    return {"n": count, "methods": methods or None}


def _of_level(
    predictions: Predictions, column: str, level: str, levels: Mapping[Place, Array], by: str
) -> Iterator[tuple[Any, ...]]:
    """The rows of the table for one level."""
    methods = dict.fromkeys(key.method for key in predictions)
    silos = dict.fromkeys(silo for _, silo in levels)
    for silo in (*silos, None):
        for method in methods:
            seeds = dict[int, list[Rows]]()
            for place, (key, rows) in enumerate(predictions.items()):
                if key.method == method and key.split == "test" and silo in (key.silo, None):
                    mine = levels.get((key.seed, key.silo))
                    if mine is not None and rows.plain:
                        part = rows.take(np.flatnonzero(mine == level))
                        seeds.setdefault(key.seed, []).append(part if silo else part.apart(place))
            counts = [sum(len(part.labels) for part in parts) for parts in seeds.values()]
            if not counts or not any(counts):
                continue
            head = (method, column, level, silo, round(float(np.mean(counts))))
            wholes = [joined(parts) for parts in seeds.values()]
            diverged = not all(np.isfinite(whole.predicted).all() for whole in wholes)
            if min(counts) < FEWEST or diverged:
                yield (*head, None, np.nan, np.nan, np.nan)
                continue
            yield from ((*head, *each) for each in _measured(wholes, by))


def _measured(seeds: Sequence[Rows], by: str) -> Iterator[tuple[str, float, float, float]]:
    values = [rows.measured(by) for rows in seeds]
    for name in values[0]:
        value = float(np.mean([each[name] for each in values]))
        low = high = np.nan
        if name == by:
            measure = measure_of(name)
            own = interval(measure, [rows.scored(measure) for rows in seeds])
            low, high = own.low, own.high
        yield name, value, low, high
