"""Records: slicing, stacking and counting know nothing of a method but its fields."""

import dataclasses

import pytest
import torch
from torch import Tensor

from coterie.wire import About, Down, Private, Record, Up, bank, described, every_field, held, rows, shared, stack


class Inner(Record):
    v: Tensor = rows("a velocity", role="model")
    scale: Tensor = shared("one for all")


class Outer(Private):
    w: Tensor = rows("a model", role="model")
    mean: Tensor = shared("a model for all", role="model")
    extra: Tensor | None = rows("maybe", default=None)
    opt: Inner


class Handed(Down):
    start: Tensor = shared("a model", role="model")
    models: Tensor = bank("models", picks="picks")
    picks: Tensor = rows("which of them", "M")


def outer(k: int = 3, extra: bool = False) -> Outer:
    w = torch.arange(2.0 * k).reshape(k, 2)
    more = torch.arange(float(k)) if extra else None
    return Outer(w=w, mean=torch.tensor([7.0, 8.0]), extra=more, opt=Inner(v=-w, scale=torch.tensor(3.0)))


def same(a: Record, b: Record) -> None:
    assert type(a) is type(b)
    assert a.tensors().keys() == b.tensors().keys()
    for name, value in a.tensors().items():
        assert torch.equal(value, b.tensors()[name]), name


def test_records_are_frozen_and_made_by_name() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        outer().w = torch.zeros(1)  # type: ignore[misc]
    with pytest.raises(TypeError):
        Inner(torch.zeros(1), torch.zeros(1))  # type: ignore[misc]
    with pytest.raises(TypeError):
        Inner(v=torch.zeros(1))  # type: ignore[call-arg]


@pytest.mark.parametrize("index", [torch.tensor([2, 0]), slice(1, 3)], ids=["tensor", "slice"])
def test_take_slices_what_has_rows_and_leaves_what_is_shared(index: Tensor | slice) -> None:
    whole = outer(extra=True)
    part = whole.take(index)
    assert torch.equal(part.w, whole.w[index])
    assert torch.equal(part.opt.v, whole.opt.v[index])
    assert part.extra is not None
    assert whole.extra is not None
    assert torch.equal(part.extra, whole.extra[index])
    assert part.mean is whole.mean
    assert part.opt.scale is whole.opt.scale
    assert outer().take(index).extra is None


def test_put_replaces_some_rows_and_nothing_in_place() -> None:
    whole = outer(extra=True)
    index = torch.tensor([2, 0])
    part = whole.take(index).map(lambda t: t + 100)
    new = whole.put(index, part)
    assert new.w.tolist() == [[100, 101], [2, 3], [104, 105]]
    assert new.opt.v.tolist() == [[100, 99], [-2, -3], [96, 95]]
    assert new.extra is not None
    assert new.extra.tolist() == [100, 1, 102]
    assert new.mean.tolist() == [107, 108]  # what is shared is as the part has it
    same(whole, outer(extra=True))
    same(whole.put(index, whole.take(index)), whole)


def test_stack_is_the_inverse_of_take() -> None:
    whole = outer(5, extra=True)
    same(stack([whole.take(slice(0, 2)), whole.take(slice(2, 3)), whole.take(slice(3, 5))]), whole)
    assert stack([whole]) is whole
    same(stack([outer().take(slice(0, 1)), outer().take(slice(1, 3))]), outer())


def test_map_changes_every_tensor() -> None:
    doubled = outer(extra=True).map(lambda t: 2 * t)
    for name, value in outer(extra=True).tensors().items():
        assert torch.equal(doubled.tensors()[name], 2 * value)
    assert outer().map(lambda t: 2 * t).extra is None


def test_tensors_are_named_and_come_back() -> None:
    assert list(outer().tensors()) == ["w", "mean", "opt.v", "opt.scale"]
    assert list(outer(extra=True).tensors()) == ["w", "mean", "extra", "opt.v", "opt.scale"]
    other = outer(extra=True).map(lambda t: t + 1)
    same(outer(extra=True).with_tensors(other.tensors()), other)
    with pytest.raises(KeyError, match="scale"):
        outer().with_tensors({"w": torch.zeros(1), "mean": torch.zeros(1), "opt.v": torch.zeros(1)})


def test_nbytes_counts_every_tensor() -> None:
    assert outer().nbytes() == 4 * (6 + 2 + 6 + 1)
    assert outer(extra=True).nbytes() == 4 * (6 + 2 + 6 + 1 + 3)
    assert outer().map(lambda t: t.double()).nbytes() == 8 * 15


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_one_silo_is_sent_its_row_and_only_the_models_it_points_at(dtype: torch.dtype) -> None:
    models = torch.arange(10.0).reshape(5, 2)
    picks = torch.tensor([[4, -1, 1], [-1, -1, -1], [2, 2, 0]], dtype=dtype)
    whole = Handed(start=torch.zeros(2), models=models, picks=picks)
    for row in range(3):
        alone = whole.one(row)
        wanted = [i for i in picks[row].tolist() if i >= 0]
        assert len(alone.models) == len(set(wanted))
        assert alone.picks.shape == (1, 3)
        assert alone.picks.dtype == dtype
        assert torch.equal(alone.picks < 0, picks[row : row + 1] < 0)
        for before, after in zip(picks[row].tolist(), alone.picks[0].tolist(), strict=True):
            if before >= 0:
                assert torch.equal(alone.models[after], models[before])
        assert alone.start is whole.start
    assert whole.take(slice(0, 1)).models is models  # in one process the bank is held once


def test_one_of_a_record_without_a_bank_is_its_row() -> None:
    same(outer().one(1), outer().take(slice(1, 2)))


def test_a_field_says_what_it_is() -> None:
    class Sent(Up):
        w: Tensor = rows("a model", role="model", seen_by="server")
        dw: Tensor = rows("a difference", role="change")

    about, handed = described(Sent), described(Handed)
    assert about["w"] == About("a model", "rows", "model", ("d",), "server")
    assert about["dw"].role == "change" and about["dw"].has_columns
    assert handed["models"].picks == "picks"
    assert handed["models"].axes == ("n", "d")
    assert handed["start"].kind == "shared"
    assert About("", "rows", "model", ("c?", "d")).shape == "d or c × d"


class Pair(Down):
    left: Handed
    right: Handed


def pair() -> Pair:
    models = torch.arange(8.0).reshape(4, 2)
    one, two = torch.tensor([[0, 2], [2, -1]]), torch.tensor([[3, 3], [1, 0]])
    return Pair(
        left=Handed(start=torch.zeros(2), models=models, picks=one),
        right=Handed(start=torch.ones(2), models=models, picks=two),
    )


def test_a_record_may_hold_records_whose_types_it_declares() -> None:
    assert held(Pair) == {"left": Handed, "right": Handed}
    assert held(outer()) == {"opt": Inner}
    assert list(every_field(Pair)) == [f"{side}.{name}" for side in ("left", "right") for name in described(Handed)]
    assert every_field(outer())["opt.v"] == described(Inner)["v"]
    assert described(Pair) == {}


def test_of_a_bank_inside_a_record_a_silo_is_sent_what_it_points_at() -> None:
    whole = pair()
    for row, counts in ((0, (2, 1)), (1, (1, 2))):
        alone = whole.one(row)
        assert (len(alone.left.models), len(alone.right.models)) == counts
        same(alone.left, whole.left.one(row))
        same(alone.right, whole.right.one(row))
        assert whole.one_nbytes(row) == alone.nbytes()
    assert whole.each_nbytes(2) == sum(whole.one(row).nbytes() for row in range(2))
