"""A column of a table: numbers, categories (text, true or false), dates, or nothing at all."""

from typing import Literal

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from coterie.data.silo import Array
from coterie.errors import BadInput, nearest

Kind = Literal["number", "category", "date", "empty"]
DATE = r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{4}([T ].*)?"
# With slashes nobody can tell the day from the month.
DATES = ((r"\d{4}-\d{1,2}-\d{1,2}", "%Y-%m-%d"), (r"\d{1,2}\.\d{1,2}\.\d{4}", "%d.%m.%Y"))
EPOCH = np.datetime64("2000-01-01")
TRUTH = {"true", "false"}
LARGEST = 1e100  # whose squares still add up


def kind_of(column: Series, where: str) -> Kind:
    """What a column holds; every value has its say."""
    if is_dated(column):
        return "date"
    if pd.api.types.is_timedelta64_dtype(column.dtype):
        raise BadInput(f"{where}: holds durations; turn it into a number of days or leave it out with --drop")
    if pd.api.types.is_complex_dtype(column.dtype):
        raise BadInput(f"{where}: holds complex numbers; give plain ones or leave it out with --drop")
    numbers = _numbers(column)
    if numbers is not None:
        return "empty" if np.isnan(numbers).all() else "number"
    levels = as_text(column, where).dropna().drop_duplicates()
    if levels.empty:
        return "empty"
    if numbers_in(levels).notna().all():
        return "number"
    return "date" if levels.str.fullmatch(DATE).all() else "category"


def as_number(column: Series, where: str) -> Array:
    """The column as float64, NaN where a value is missing; of dates their days."""
    if is_dated(column):
        return as_days(column, where)
    values = _numbers(column)
    if values is None:
        text = as_text(column, where)
        parsed = numbers_in(text)
        check_read(text, parsed, where, "is no number; correct it")
        values = parsed.to_numpy(dtype=np.float64, na_value=np.nan)
    return _bounded(values, where)


def check_read(text: Series, found: Series, where: str, complaint: str) -> None:
    """Refuse a column in which some text could not be read as what it should be."""
    wrong = text.notna() & found.isna()
    if wrong.any():
        raise BadInput(f"{where}: {text[wrong].iloc[0]!r} in row {_row(wrong)} {complaint}")


def _bounded(values: Array, where: str) -> Array:
    """The numbers, all of which can be standardised."""
    if np.isinf(values).any():
        raise BadInput(f"{where}: infinity in row {_row(np.isinf(values))}; correct it or leave it empty")
    large = np.abs(values) > LARGEST
    if large.any():
        raise BadInput(
            f"{where}: {values[large][0]:g} in row {_row(large)} is beyond {LARGEST:g}, more than can be standardised; "
            "correct it or leave it empty, or count in a larger unit"
        )
    return values


def as_days(column: Series, where: str) -> Array:
    """Dates as days since 2000 (float64), whatever their time of day; NaN where one is missing."""
    if is_dated(column):
        dates = pd.to_datetime(column)
        dates = dates if dates.dt.tz is None else dates.dt.tz_localize(None)
    else:
        text = as_text(column, where)
        codes, levels = pd.factorize(text)
        dates = _dates(Series(levels, dtype=object)).reindex(codes).set_axis(column.index)  # -1, no level, is missing
        remedy = "write it so, or leave the column out with --drop"
        check_read(text, dates, where, f"is no date such as 2024-01-31 or 31.1.2024; {remedy}")
    days = dates.to_numpy().astype("datetime64[D]") - EPOCH
    return np.where(np.isnat(days), np.nan, days.astype(np.float64))


def _dates(text: Series) -> Series:
    """Text as dates, NaT where it is none."""
    found = [pd.to_datetime(text.str.extract(f"^({shape})(?!\\d)")[0], format=f, errors="coerce") for shape, f in DATES]
    return found[0].fillna(found[1])


def as_text(column: Series, where: str) -> Series:
    """The column as trimmed text, None where a value is missing; true and false are written so."""
    made: Series
    if pd.api.types.is_bool_dtype(column.dtype):
        made = column.map({True: "true", False: "false"}).astype(object)
    elif _numeric(column):
        made = column.map(number_name, na_action="ignore").astype(object)
    elif pd.api.types.infer_dtype(column) == "string" and not column.is_unique:
        codes, levels = pd.factorize(column)  # -1 where a value is missing
        names = as_text(Series(levels, dtype=object), where).to_numpy(dtype=object)
        return Series(np.array([*names, None], dtype=object)[codes], column.index, dtype=object)
    else:
        odd = [value for value in column.dropna() if not isinstance(value, str | bool | int | float | np.generic)]
        if odd:
            raise BadInput(f"{where}: holds {type(odd[0]).__name__}, not numbers or text; leave it out with --drop")
        made = column.map(str, na_action="ignore").astype(object).str.strip()
        made = made.where(made != "", None)
        if {value.lower() for value in made.dropna().unique()[:3]} <= TRUTH:
            made = made.str.lower()
    return made.where(made.notna(), None)


def parsed(frame: DataFrame, where: str, text: tuple[str, ...] = ()) -> DataFrame:
    """A table whose numbers are float64 and whose dates are days, whatever they were written as; `text` stays text."""
    absent = [name for name in text if name not in frame.columns]
    if absent:
        raise BadInput(f"--text {absent[0]}: {where} has no such column; {nearest(absent[0], map(str, frame.columns))}")
    made = {}
    for name, column in frame.items():
        if name in text:
            made[name] = column
            continue
        at, values = f"{where} column {name!r}", _numbers(column)
        kind = "number" if values is not None else kind_of(column, at)
        if values is not None:
            made[name] = _bounded(values, at)
        elif kind == "date":
            made[name] = EPOCH + as_days(column, at).astype("timedelta64[D]")
        else:
            made[name] = as_number(column, at) if kind == "number" else column
    return DataFrame(made, frame.index, copy=False)


def number_name(value: float) -> str:
    """A number as the name of a class: 1.0 and 1 are one."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def is_dated(column: Series) -> bool:
    """Whether its type, or that of its values, is that of dates."""
    return pd.api.types.infer_dtype(column) in ("datetime64", "datetime", "date")


def written(value: float, date: bool, digits: int = 6) -> str:
    """A number, or days since 2000 as their date."""
    return str(EPOCH + np.timedelta64(int(value), "D")) if date else f"{value:.{digits}g}"


def numbers_in(text: Series) -> Series:
    """Text as numbers, NaN where it is none."""
    return pd.to_numeric(text, errors="coerce")


def without(frame: DataFrame, drop: tuple[str, ...]) -> DataFrame:
    """A table less the columns that are to be left out; not every table need have them."""
    return frame[[name for name in frame.columns if name not in drop]]


def _numeric(column: Series) -> bool:
    """Whether its type is that of numbers; pandas counts true and false among them."""
    dtype = column.dtype
    return bool(pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype))


def _numbers(column: Series) -> Array | None:
    """(n,) the column as float64 where its type is that of numbers or Arrow reads them in all of its text."""
    made: Array
    if _numeric(column):
        made = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return made
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        values = pa.array(column, from_pandas=True)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            text = pc.utf8_trim_whitespace(values)
            values = pc.if_else(pc.equal(text, ""), None, text)
        elif pa.types.is_boolean(values.type):
            return None
        made = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
    return made


def _row(wrong: "Series | Array") -> int:
    """The first wrong row, counted from 1 after the head of the table."""
    return int(np.flatnonzero(np.asarray(wrong))[0]) + 1
