"""CSV and Parquet files as tables of plain columns, read strictly."""

import csv
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coterie.data.archives import reading
from coterie.errors import BadInput, first_line

LARGEST = 4 << 30  # bytes of a table in a file, and unpacked
COLUMNS = 10_000
MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"]
DELIMITERS = ",;\t"
DECIMAL = r"^\s*[+-]?\d+(,\d+)?([eE][+-]?\d+)?\s*$"


def read_table(path: Path) -> DataFrame:
    """A CSV file as text by column, a Parquet file with its types."""
    with reading(path):
        if path.stat().st_size > LARGEST:
            raise BadInput(f"{path}: is larger than {LARGEST} bytes; give a smaller table")
        frame = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    if frame.empty:
        raise BadInput(f"{path}: has no rows; add some or leave the file out")
    return frame


def _csv(path: Path) -> DataFrame:
    import pyarrow as pa
    from pyarrow import csv as arrow

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline(1 << 20)
            delimiter = max(DELIMITERS, key=head.count)
            lines = csv.reader(chain([head], iter(lambda: file.readline(1 << 20), "")), delimiter=delimiter)
            names = [name.strip() for name in next(lines, [])]  # one may go over several lines
        _check_names(names, path)
        table = arrow.read_csv(
            path,
            arrow.ReadOptions(column_names=[str(i) for i in range(len(names))], skip_rows=lines.line_num),
            arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            arrow.ConvertOptions(
                column_types={str(i): pa.large_string() for i in range(len(names))},
                null_values=MISSING,
                strings_can_be_null=True,
            ),
        )
        if delimiter != ",":
            table = pa.table([_with_points(column) for column in table.columns], names)
        return table.rename_columns(names).to_pandas()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not text in UTF-8 (byte {error.start}); save it as UTF-8") from None
    except (pa.ArrowException, csv.Error, ValueError, OverflowError) as error:
        raise BadInput(f"{path}: not a CSV table in UTF-8 ({first_line(error)}); write it again") from None


def _with_points(column: Any) -> Any:
    """A column of text; where all of it is numbers with decimal commas, with decimal points."""
    import pyarrow.compute as pc

    with_commas = pc.any(pc.match_substring(column, ",")).as_py()
    if with_commas and pc.all(pc.match_substring_regex(column, DECIMAL)).as_py():
        return pc.replace_substring(column, ",", ".")
    return column


def _parquet(path: Path) -> DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            about = file.metadata
            unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
            if unpacked > LARGEST or about.num_rows > LARGEST // 8:
                raise BadInput(f"{path}: unpacks to {unpacked} bytes, more than the limit of {LARGEST}")
            _check_names(file.schema_arrow.names, path)
            table = file.read()
        columns = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if pa.types.is_decimal(column.type):
                column = column.cast(pa.float64())
            columns[name] = column.to_pandas(date_as_object=False)
        return DataFrame(columns)
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise BadInput(f"{path}: damaged or not a Parquet file ({first_line(error)}); write it again") from None


def _check_names(names: list[str], path: Path) -> None:
    if len(names) > COLUMNS:
        raise BadInput(f"{path}: has {len(names)} columns, more than the limit of {COLUMNS}")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise BadInput(f"{path}: two columns are called {twice!r}; rename one")
    if not all(names):
        raise BadInput(f"{path}: column {names.index('') + 1} has no name; give the table a head with names")
