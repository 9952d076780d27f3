"""Samples beyond the limit of memory lie in files without a name, and are the same."""

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.data import cache, mapped
from coterie.data.own.gather import from_frame
from coterie.data.own.ready import OwnData, ready
from coterie.data.silo import Part, Silo
from coterie.engine.store import Store
from coterie.errors import BadInput


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))


def table(seed, rows=40):
    rng = np.random.default_rng(seed)
    x = {"a": rng.normal(size=rows), "n": rng.integers(9, size=rows), "t": rng.choice(["p", "q"], rows)}
    return pd.DataFrame(x).assign(y=rng.integers(2, size=rows))


def federation():
    holdings = [from_frame(f"s{i}", table(i), "y", (), f"s{i}").resting() for i in range(3)]
    return ready(holdings, OwnData(label="y"), seed=0)


def test_memory_is_taken_up_to_the_limit_and_files_after_it():
    with mapped.holding(1e-6):  # 1,000 bytes
        first, second, third = (mapped.kept(np.arange(n)) for n in (100, 100, 20))
    assert [mapped.is_mapped(each) for each in (first, second, third)] == [False, True, False]
    assert np.array_equal(second, np.arange(100)) and second.dtype == np.arange(1).dtype
    assert not list((cache.root() / "samples").iterdir())  # nothing is left behind


def test_without_a_limit_nothing_is_copied():
    values = np.arange(5)
    assert mapped.kept(values) is values
    assert not mapped.is_mapped(mapped.room((3, 2), np.float32))


def test_a_view_of_a_file_is_not_written_into_another():
    with mapped.holding(0):
        values = mapped.kept(np.arange(10.0))
        assert mapped.is_mapped(part := values[2:5]) and mapped.kept(part) is part


def test_silos_in_files_are_those_in_memory(monkeypatch):
    plain, files, in_file = federation(), [], mapped._in_file
    monkeypatch.setattr(mapped, "_in_file", lambda shape, *more: (files.append(shape), in_file(shape, *more))[1])
    with mapped.holding(0):
        found = federation()
        store = Store(found.silos, "cpu")
    expected = Store(plain.silos, "cpu")
    for one, other in zip(found.silos, plain.silos, strict=True):
        for split in ("train", "validation", "test"):
            mine, theirs = getattr(one, split).x, getattr(other, split).x
            assert mapped.is_mapped(mine) and not mapped.is_mapped(theirs)
            assert mine.dtype == theirs.dtype and np.array_equal(mine, theirs)
    for split in ("train", "validation", "test"):
        assert tuple(store[split].x.shape) in files
        index = torch.tensor([[2, 0], [1, 1]])
        for one, other in zip(*(s[split].gather(torch.tensor([2, 0]), index) for s in (store, expected)), strict=True):
            assert torch.equal(one, other)


def test_numbers_of_a_table_are_in_files_and_text_is_not():
    with mapped.holding(0):
        held = from_frame("s", table(0), "y", (), "s").resting()
    assert [mapped.is_mapped(held.x[name].to_numpy()) for name in ("a", "n")] == [True, True]
    pd.testing.assert_frame_equal(held.x, table(0)[["a", "n", "t"]])


def test_a_disk_without_room_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(mapped, "DISK", 0)
    with mapped.holding(0), pytest.raises(BadInput, match="COTERIE_DATA"):
        Store([Silo("a", *[Part(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))] * 3)], "cpu")


def test_a_disk_that_is_full_when_it_comes_to_it_is_an_error_too(monkeypatch, tmp_path):
    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped.os, "posix_fallocate", full)
    with mapped.holding(0), pytest.raises(BadInput, match=r"do not fit \(No space left on device\)"):
        mapped.kept(np.zeros(4))
    assert not list((tmp_path / "samples").iterdir())


def test_limits_within_each_other_are_one():
    with mapped.holding(100 / 1e9):
        for expected in (False, True):
            with mapped.holding(100 / 1e9):
                assert mapped.is_mapped(mapped.kept(np.zeros(10))) is expected


def test_columns_that_read_alike_are_no_ones_numbers():
    frame = pd.DataFrame([[1.0, "hi", "no"], [2.0, "hi", "yes"]], columns=[1, "1", "y"])
    with mapped.holding(0):
        found = from_frame("s", frame, "y", (), "s").resting()
    assert found.x["1"].tolist() == ["hi", "hi"]
