"""A silo's own tables: CSV and Parquet, whole, damaged and made up, as data and as rows to predict for."""

import io
from functools import cache
from typing import Any

import pandas as pd
from fuzzing import fuzz, scratch, survives
from hypothesis import example
from hypothesis import strategies as st
from mutate import bytes_like, names, numbers

from coterie.data import catalog
from coterie.personal.inputs import read_samples

CSV = b"age,colour,score,label\n" + b"".join(
    b"%d,%s,%d.5,%d\n" % (i, b"red" if i % 2 else b"blue", i, i % 3) for i in range(30)
)
cells = st.one_of(
    numbers.map(str), names, st.sampled_from(["", "NA", "1e999", "-inf", "2020-01-01", '"', '"a,b"', "=1+1", "True"])
)


@st.composite
def tables(draw: Any) -> bytes:
    """The valid table with some cells, or a name of a column, replaced."""
    lines = [line.split(",") for line in CSV.decode().splitlines()]
    for _ in range(draw(st.integers(1, 6))):
        lines[draw(st.integers(0, 30))][draw(st.integers(0, 3))] = draw(cells)
    return "\n".join(",".join(line) for line in lines).encode(errors="surrogatepass")


def load(content: bytes, kind: str) -> None:
    with scratch() as folder:
        silos = folder / "silos"
        silos.mkdir()
        for name, held in (("a", content), ("b", content), ("c", CSV if kind == "csv" else parquet())):
            (silos / f"{name}.{kind}").write_bytes(held)
        survives(lambda: catalog.load("own", {"path": str(silos), "label": "label"}, 0))
        survives(lambda: read_samples(silos / f"a.{kind}"))


@fuzz(350, st.one_of(tables(), tables(), bytes_like(CSV)), memory=4 << 30)  # Arrow takes 1 GB at a time
@example(b"label," + b",".join(b"c%d" % i for i in range(20_000)) + b"\n1\n")
@example(b'label,x\n1,"' + b"\n" * 1000)
def test_a_csv_table_is_taken_or_refused(content: bytes) -> None:
    load(content, "csv")


@cache
def parquet() -> bytes:
    file = io.BytesIO()
    pd.read_csv(io.BytesIO(CSV)).to_parquet(file, index=False)
    return file.getvalue()


@fuzz(200, st.deferred(lambda: bytes_like(parquet())), memory=4 << 30)
def test_a_parquet_file_is_taken_or_refused(content: bytes) -> None:
    load(content, "parquet")
