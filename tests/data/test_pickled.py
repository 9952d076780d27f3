"""A table in a pickle is read by hand: what it holds comes out, and nothing that it names is ever called."""

import lzma
import os
import pickle
import struct

import numpy as np
import pandas as pd
import pytest

from coterie.data.pickled import CellsLeft, held_arrays, read_pickled
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


def test_categories_may_be_whole_numbers_of_pandas_own_kind(tmp_path):
    levels = pd.Index(pd.array([120, 128], dtype="Int32"))
    frame = pd.DataFrame({"centre": pd.Categorical.from_codes([1, 0, -1], levels)})
    frame.columns = pd.Index(frame.columns, dtype=object)
    found = read(tmp_path, pickle.dumps(frame, protocol=5))["centre"]
    assert found[:2].tolist() == [128, 120] and pd.isna(found[2])


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


# Hostile pickles, opcode by opcode: one that refers to what it described before (`h`) says much in few bytes.


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def called(module: str, name: str, arguments: bytes = b")") -> bytes:
    return text(module) + text(name) + b"\x93" + arguments + b"R"


def dtype(kind: bytes = text("u1")) -> bytes:
    return called("numpy", "dtype", kind + b"\x85") + b"(K\x03" + text("|") + b"tb"


def array(shape: bytes, data: bytes, kind: bytes = text("u1")) -> bytes:
    """`shape` is a tuple."""
    made = called("numpy.core.multiarray", "_reconstruct")
    return made + b"(K\x01" + shape + dtype(kind) + b"\x89" + data + b"tb"


def objects(data: bytes, count: int) -> bytes:
    return array(b"K" + bytes([count]) + b"\x85", data, text("O8"))


def buffer(data: bytes) -> bytes:
    return b"\x96" + struct.pack("<Q", len(data)) + data


def archive(items: bytes) -> bytes:
    """What NumPy writes of one dict."""
    return b"\x80\x05" + array(b")", b"](}(" + items + b"ue", text("O8")) + b"."


def whole_table(names: bytes, blocks: bytes) -> bytes:
    """`names` is the array of the columns' names, `blocks` those on the stack."""
    manager = called("pandas.core.internals.managers", "BlockManager", b"((" + blocks + b"t]" + names + b"at")
    return b"\x80\x05" + called("pandas", "DataFrame") + b"}" + text("_mgr") + manager + b"sb."


def index(data: bytes) -> bytes:
    kind = text("pandas") + text("Index") + b"\x93"
    return called("pandas.core.indexes.base", "_new_Index", kind + b"}" + text("data") + data + b"s\x86")


def block(values: bytes, place: int) -> bytes:
    places = called("builtins", "slice", b"K" + bytes([place]) + b"K" + bytes([place + 1]) + b"K\x01\x87")
    return called("pandas._libs.internals", "_unpickle_block", values + places + b"K\x02\x87")


def test_a_type_is_text_and_nothing_else_is_hashed():
    nested = b")q\x00" + b"".join(b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(22))  # 2 ** 22 tuples
    with pytest.raises(ValueError, match="a tuple where a str belongs"):
        held_arrays(archive(text("x") + array(b"K\x01\x85", b"C\x01a", nested)))


def test_arrays_share_what_they_refer_to_and_all_are_no_larger_than_the_file():
    one = text("x") + array(b"M\x00\x10\x85", buffer(bytes(4096))) + b"q\x07"
    assert [*held_arrays(archive(one))["x"]] == [0] * 4096
    with pytest.raises(ValueError, match="too large"):
        held_arrays(archive(one + b"".join(text(str(i)) + b"h\x07" for i in range(9))))


def test_a_number_is_no_bytes():
    with pytest.raises((TypeError, ValueError), match="bytes-like"):
        held_arrays(archive(text("x") + array(b"K\x05\x85", b"K\x05")))


def test_a_block_counts_as_often_as_it_is_referred_to(tmp_path, monkeypatch):
    names = index(objects(b"](" + b"".join(map(text, "abc")) + b"e", 3))
    values = array(b"K\x01K\x64\x86", buffer(bytes(100)))
    shared = block(values + b"q\x07", 0) + block(b"h\x07", 1) + block(b"h\x07", 2)
    assert read(tmp_path, whole_table(names, shared)).shape == (100, 3)
    with pytest.raises(BadInput, match="two blocks"):
        read(tmp_path, whole_table(names, block(values, 0) + b"q\x07" + b"h\x07" * 5))
    monkeypatch.setattr("coterie.data.pickled.CellsLeft", lambda left: CellsLeft(250))
    with pytest.raises(BadInput, match="too large"):
        read(tmp_path, whole_table(names, shared))


def test_what_holds_itself_is_refused(tmp_path):
    names = index(objects(b"](" + text("a") + b"e", 1))
    kind = text("pandas") + text("Categorical") + b"\x93"
    itself = called("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked", kind + b"K\x01N\x87") + b"q\x01"
    levels = called("pandas", "CategoricalDtype") + b"}" + text("categories") + index(b"h\x01") + b"sb"
    itself += levels + array(b"K\x01\x85", buffer(b"\x00")) + b"}\x87b"
    with pytest.raises(BadInput, match="damaged or no table"):
        read(tmp_path, whole_table(names, block(itself, 0)))
