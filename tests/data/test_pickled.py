"""A table in a pickle is read by hand: what it holds comes out, and nothing that it names is ever called."""

import lzma
import os
import pickle

import numpy as np
import pandas as pd
import pytest

from coterie.data.pickled import read_pickled
from coterie.errors import BadInput


def table() -> pd.DataFrame:
    frame = pd.DataFrame({"site": [3, 1, 2], "age": [0.5, np.nan, 2.0], "old": [True, False, True], "n": [7, 8, 9]})
    frame["sex"] = pd.Series(["f", None, "m"], dtype=object)
    frame["kind"] = pd.Categorical(["b", "a", None])
    frame["kind"] = frame["kind"].cat.rename_categories(pd.Index(["a", "b"], dtype=object))
    frame["score"] = pd.array([1, None, 3], dtype="Int32")
    frame.columns = pd.Index(frame.columns, dtype=object)
    return frame


def read(tmp_path, data: bytes) -> pd.DataFrame:
    (tmp_path / "table.pickle").write_bytes(data)
    return read_pickled(tmp_path / "table.pickle")


def test_a_table_comes_out_as_it_went_in(tmp_path):
    found = read(tmp_path, pickle.dumps(table(), protocol=5))
    assert [*found.columns] == ["site", "age", "old", "n", "sex", "kind", "score"]
    assert found["site"].tolist() == [3, 1, 2] and found["n"].tolist() == [7, 8, 9]
    assert found["old"].tolist() == [True, False, True]
    assert found["age"].tolist()[::2] == [0.5, 2.0] and np.isnan(found["age"][1])
    assert [found["sex"][0], found["sex"][2]] == ["f", "m"] and pd.isna(found["sex"][1])
    assert [found["kind"][0], found["kind"][1]] == ["b", "a"] and pd.isna(found["kind"][2])
    assert found["score"].tolist()[::2] == [1, 3] and np.isnan(found["score"][1])


def test_also_packed_and_as_older_versions_name_it(tmp_path):
    data = pickle.dumps(table(), protocol=5)
    older = data.replace(b"\x8c\x13numpy._core.numeric", b"\x8c\x12numpy.core.numeric")
    assert older != data
    assert read(tmp_path, lzma.compress(older)).shape == (3, 7)


class Harm:
    def __reduce__(self):
        return os.system, ("touch /tmp/harm",)


@pytest.mark.parametrize("whole", [Harm(), {"a": [Harm()]}, pd.DataFrame({"a": [Harm()]})])
def test_what_it_names_is_refused_and_not_called(tmp_path, whole, monkeypatch):
    data = pickle.dumps(whole, protocol=5)
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("called"))
    with pytest.raises(BadInput, match=r"names 'posix\.system', which no table needs"):
        read(tmp_path, data)


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_older_protocols_are_refused(tmp_path, protocol):
    with pytest.raises(BadInput, match="which no table needs"):
        read(tmp_path, pickle.dumps(table(), protocol=protocol))


def test_what_is_no_table_is_refused_in_one_line(tmp_path):
    for data in (b"", b"\x80\x05", b"abc", pickle.dumps([1, 2], protocol=5), pickle.dumps(table(), protocol=5)[:-400]):
        with pytest.raises(BadInput, match="damaged or no table"):
            read(tmp_path, data)
    with pytest.raises(BadInput, match="cannot be read"):
        read_pickled(tmp_path / "absent.pickle")


def test_a_table_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.data.pickled.LARGEST", 1000)
    with pytest.raises(BadInput, match="more than 1000 bytes"):
        read(tmp_path, lzma.compress(bytes(100_000)))
