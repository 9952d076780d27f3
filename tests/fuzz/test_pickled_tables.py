"""Pickled tables that are damaged or hostile: refused in one line, or a table of plain values."""

import pickle

import numpy as np
import pandas as pd
from fuzzing import fuzz, scratch, survives
from mutate import bytes_like

from coterie.data.pickled import read_pickled

TABLE = pd.DataFrame({"a": [1, 2, 3], "b": [0.5, np.nan, 2.0], "c": pd.Categorical.from_codes([0, 1, -1], [5, 6])})
TABLE["d"] = pd.Series(["x", None, "y"], dtype=object)
TABLE.columns = pd.Index([*"abcd"], dtype=object)
VALID = pickle.dumps(TABLE, protocol=5)


@fuzz(400, bytes_like(VALID, front=len(VALID)))
def test_a_damaged_table_is_read_or_refused(data: bytes) -> None:
    with scratch() as folder:
        (folder / "table.pickle").write_bytes(data)
        found = survives(lambda: read_pickled(folder / "table.pickle"))
    assert found is None or all(
        value is None or isinstance(value, str | int | float)
        for column in found.columns
        for value in found[column].tolist()
    )
