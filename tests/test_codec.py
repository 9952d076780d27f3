"""Records as bytes: only an Up leaves a silo, and only what is whole comes in."""

import json

import pytest
import safetensors.torch
import torch
from torch import Tensor

from coterie.codec import decode, encode, encode_up
from coterie.errors import BadInput
from coterie.wire import Down, Predictor, Private, Record, Server, State, Up, bank, rows, shared


class Sent(Up):
    w: Tensor = rows("a model", role="model")
    n: Tensor = shared("a count", below="count")


class Picked(Up):
    bank: Tensor = bank("models", picks="picks")
    picks: Tensor = rows("which of them", "N", below="n")
    wanted: Tensor = rows("which of N", below="N")


class Told(Down):
    w: Tensor = rows("a model", role="model")


class Kept(Private):
    w: Tensor = rows("a model", role="model")


class Stored(Server):
    w: Tensor = rows("a model", role="model")


class Running(State):
    w: Tensor = rows("a model", role="model")


class Maybe(Up):
    w: Tensor = rows("a model", role="model")
    more: Tensor | None = rows("more", role="model", default=None)


def sent() -> Sent:
    return Sent(w=torch.arange(6.0).reshape(2, 3), n=torch.tensor(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_what_is_decoded_is_what_was_encoded(dtype: torch.dtype) -> None:
    before = Sent(w=(torch.arange(6).reshape(2, 3) % 2).to(dtype), n=torch.tensor(4))
    after = decode(Sent, encode_up(before))
    assert after.w.dtype == dtype
    assert torch.equal(after.w, before.w)
    assert torch.equal(after.n, before.n)


def test_views_and_expanded_tensors_are_encoded_as_they_read() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    for w in (base.T, base[:, 1:3], base[:1].expand(5, 4), base[:0], base.clone().requires_grad_()):
        assert torch.equal(decode(Told, encode(Told(w=w))).w, w)


def test_one_tensor_under_two_names_is_two_after_the_wire() -> None:
    w = torch.arange(6.0).reshape(3, 2)
    for more in (w, w[:], w.clone()):
        after = decode(Maybe, encode_up(Maybe(w=w, more=more)))
        assert after.more is not None
        assert torch.equal(after.w, w)
        assert torch.equal(after.more, more)


@pytest.mark.parametrize("kind", [Told, Kept, Stored, Running])
def test_nothing_but_an_up_leaves_a_silo(kind: type[Record]) -> None:
    record = kind(w=torch.zeros(2, 3))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=f"only an Up may leave a silo, not a {kind.__name__}"):
        encode_up(record)  # type: ignore[arg-type]


def test_nor_does_anything_else_inside_an_up() -> None:
    with pytest.raises(TypeError, match="only an Up may leave a silo, not a Kept"):
        encode_up(Maybe(w=torch.zeros(2, 3), more=Kept(w=torch.zeros(2, 3))))  # type: ignore[arg-type]


def test_neither_models_nor_bare_tensors_leave_a_silo() -> None:
    for thing in (Predictor(models=torch.zeros(2, 3)), torch.zeros(2), {"w": torch.zeros(2)}, None):
        with pytest.raises(TypeError, match="only an Up may leave a silo"):
            encode_up(thing)  # type: ignore[arg-type]


def test_optional_fields_may_be_left_out() -> None:
    alone = decode(Maybe, encode_up(Maybe(w=torch.ones(1, 2))))
    assert alone.more is None
    both = decode(Maybe, encode_up(Maybe(w=torch.ones(1, 2), more=torch.zeros(1, 2))))
    assert both.more is not None


def test_damaged_bytes_are_refused() -> None:
    blob = encode_up(sent())
    header = json.dumps({"w": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}).encode()
    strange = len(header).to_bytes(8, "little") + header + b"\0" * 4
    for bad in (b"", b"junk", blob[:-1], blob[:20], blob + b"\0", b"\xff" * 64, strange):
        with pytest.raises(BadInput, match="a Sent arrived damaged"):
            decode(Sent, bad)


def test_wrong_or_missing_fields_are_refused() -> None:
    with pytest.raises(BadInput, match="wrong fields: w"):
        decode(Sent, encode(Told(w=torch.zeros(1, 2))))
    with pytest.raises(BadInput, match="wrong fields: n, w"):
        decode(Told, encode_up(sent()))
    with pytest.raises(BadInput, match="a Told arrived with the wrong fields: none"):
        decode(Told, encode(_empty()))


def picked(**changes: Tensor) -> bytes:
    whole = {"bank": torch.zeros(2, 3), "picks": torch.tensor([[0, -1, 1, 0]]), "wanted": torch.tensor([3])}
    return encode_up(Picked(**(whole | changes)))  # type: ignore[arg-type]


def test_a_record_is_refused_whose_fields_are_not_as_its_type_declares() -> None:
    assert decode(Picked, picked(), torch.float32, rows=1, d=3, N=4).wanted.tolist() == [3]
    wrong = {
        "'bank' is of float64, which": {"bank": torch.zeros(2, 3, dtype=torch.float64)},
        "'bank' is of int64, which": {"bank": torch.zeros(2, 3, dtype=torch.int64)},
        r"'bank' is \(2, 4\), expected n × 3": {"bank": torch.zeros(2, 4)},
        r"'bank' is \(3,\), expected n × 3": {"bank": torch.zeros(3)},
        "'picks' is of float32, which": {"picks": torch.zeros(1, 4)},
        r"'picks' is \(1, 3\), expected 1 × 4": {"picks": torch.zeros(1, 3, dtype=torch.int64)},
        r"'picks' is \(2, 4\), expected 1 × 4": {"picks": torch.zeros(2, 4, dtype=torch.int64)},
        "'picks' points at what is not there": {"picks": torch.tensor([[0, 1, 2, 0]])},
        "'wanted' points at what is not there": {"wanted": torch.tensor([-1])},
    }
    for said, change in wrong.items():
        with pytest.raises(BadInput, match=said):
            decode(Picked, picked(**change), torch.float32, rows=1, d=3, N=4)


def test_a_letter_is_one_size_in_all_fields() -> None:
    with pytest.raises(BadInput, match=r"'more' is \(1, 3\), expected 1 × 2"):
        decode(Maybe, encode_up(Maybe(w=torch.ones(1, 2), more=torch.zeros(1, 3))))


def _empty() -> Record:
    class Empty(Down):
        pass

    return Empty()


class Both(Up):
    left: Picked
    right: Maybe


def both() -> dict[str, Tensor]:
    """The tensors of such a record, by the names under which they cross."""
    left = {"bank": torch.zeros(2, 3), "picks": torch.tensor([[0, -1, 1, 0]]), "wanted": torch.tensor([3])}
    return {**{f"left.{name}": t for name, t in left.items()}, "right.w": torch.ones(1, 3)}


def test_records_inside_a_record_are_decoded_as_their_own_types() -> None:
    after = decode(Both, safetensors.torch.save(both()), torch.float32, rows=1, d=3, N=4)
    assert isinstance(after.left, Picked)
    assert after.left.wanted.tolist() == [3]
    assert after.right.more is None
    assert encode_up(after) == encode_up(decode(Both, encode_up(after)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"right.w": None}, "wrong fields"),
        ({"left.wanted": None}, "wrong fields"),
        ({"w": torch.ones(1, 3)}, "wrong fields"),
        ({"right": torch.ones(1, 3)}, "wrong fields"),
        ({"left.w": torch.ones(1, 3)}, "wrong fields"),
        ({"right.w": None, "right.right.w": torch.ones(1, 3)}, "wrong fields"),
        ({"right.w": None, "right..w": torch.ones(1, 3)}, "wrong fields"),
        ({"other.w": torch.ones(1, 3)}, "wrong fields"),
        ({"right.w": torch.ones(1, 4)}, r"'right.w' is \(1, 4\), expected 1 × 3"),
        ({"right.more": torch.ones(2, 3)}, r"'right.more' is \(2, 3\), expected 1 × 3"),
        ({"left.picks": torch.tensor([[0, 1, 2, 0]])}, "'left.picks' points at what is not there"),
        ({"left.bank": torch.zeros(2, 3).double()}, "'left.bank' is of float64"),
    ],
)
def test_and_refused_as_strictly(changes: dict[str, Tensor | None], reason: str) -> None:
    named = {name: t for name, t in {**both(), **changes}.items() if t is not None}
    with pytest.raises(BadInput, match=reason):
        decode(Both, safetensors.torch.save(named), torch.float32, rows=1, d=3, N=4)


def test_an_axis_of_one_inner_record_may_have_another_size_than_the_others() -> None:
    blob = safetensors.torch.save({**both(), "right.w": torch.ones(1, 5)})
    assert decode(Both, blob, torch.float32, rows=1, N=4, **{"left.d": 3, "right.d": 5}).right.w.shape == (1, 5)
    with pytest.raises(BadInput, match=r"'right.w' is \(1, 5\), expected 1 × 3"):
        decode(Both, blob, torch.float32, rows=1, N=4, d=3)
