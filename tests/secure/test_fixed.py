"""Fixed point modulo 2^64 and masks: what is masked, summed and opened is what was put in, to the step."""

import numpy as np
import pytest
import torch

from coterie.errors import BadInput
from coterie.secure.fixed import MOST_WEIGHT, PIECE, FixedPoint, add_masks, as_weights, combined
from coterie.secure.masks import stream, subkey

FIXED = FixedPoint(1024.0)
STEP = 2.0**-FIXED.bits  # the smallest difference between two encoded numbers


def mask(key: bytes, size: int) -> torch.Tensor:
    made = torch.zeros(size, dtype=torch.int64)
    add_masks(made, [key], torch.tensor([1]))
    return made


def test_a_masked_mixture_opens_to_the_plain_one_to_the_step() -> None:
    draw = torch.Generator().manual_seed(0)
    w = torch.randn(5, 1000, generator=draw, dtype=torch.float64) * 100
    a = torch.softmax(torch.randn(3, 5, generator=draw, dtype=torch.float64), 1)
    masks = torch.stack([mask(subkey(b"group", j), 1000) for j in range(5)])
    weights = as_weights(a)
    total = combined(weights, FIXED.encode(w) + masks)
    opened = FIXED.decode(total - combined(weights, masks), torch.float64)
    rounded = weights.double() / 2**24
    assert (opened - rounded @ w).abs().max() <= STEP
    assert (opened - a @ w).abs().max() <= STEP + 5 * 2.0**-25 * w.abs().max()


def test_arithmetic_wraps_around_as_uint64_does() -> None:
    draw = np.random.default_rng(0)
    a, c = draw.integers(0, 2**64, (4, 6), dtype=np.uint64), draw.integers(0, 2**64, (6, 50), dtype=np.uint64)
    found = combined(torch.from_numpy(a.view(np.int64)), torch.from_numpy(c.view(np.int64)))
    assert (found.numpy().view(np.uint64) == a @ c).all()


def test_the_largest_sum_that_may_be_does_not_wrap() -> None:
    w = torch.tensor([[1024.0], [-1024.0]], dtype=torch.float64)
    a = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    assert FIXED.decode(combined(as_weights(a), FIXED.encode(w)), torch.float64).item() == 2048


@pytest.mark.parametrize("value", [1024.5, -2000.0, float("nan"), float("inf")])
def test_what_is_out_of_range_is_noticed_and_never_wraps(value: float) -> None:
    rows = torch.tensor([[1.0, value], [1024.0, -1024.0]])
    assert FIXED.fits(rows).tolist() == [False, True]


def test_weights_that_could_make_a_sum_wrap_are_refused() -> None:
    with pytest.raises(BadInput, match="wrap"):
        as_weights(torch.tensor([MOST_WEIGHT, 0.1]))


def test_a_wrong_mask_does_not_open() -> None:
    encoded = FIXED.encode(torch.zeros(1, 1000)) + mask(b"k" * 32, 1000)
    with pytest.raises(BadInput, match="group key"):
        FIXED.decode(combined(as_weights(torch.ones(1, 1)), encoded - mask(b"l" * 32, 1000)), torch.float32)


def test_the_stream_is_aes_in_counter_mode() -> None:
    """Counter mode is the block cipher of 0, 1, …"""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(32))
    plain = Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(bytes(15) + b"\0" + bytes(15) + b"\1")
    assert stream(key, 32).tobytes() == plain
    assert stream(key, 20).tobytes() == plain[:20]


def test_masks_of_many_pieces_are_the_stream_and_are_added_with_their_weights() -> None:
    size, keys = 2 * PIECE + 7, [subkey(b"group", each) for each in range(3)]
    weights = torch.tensor([[1, -5, 2**40], [0, 7, -(2**63)]])
    total = torch.arange(2 * size).reshape(2, size)
    expected = total + weights @ torch.stack([torch.from_numpy(stream(k, 8 * size).view("<i8")) for k in keys])
    add_masks(total, keys, weights)
    assert torch.equal(total, expected)
    add_masks(total, [], weights[:, :0])
    assert torch.equal(total, expected)


def test_masks_look_like_chance_and_differ_by_key() -> None:
    one, other = (mask(subkey(b"group", each), 100_000).numpy() for each in ("one", "other"))
    bits = np.unpackbits(one.view(np.uint8)).mean()
    assert abs(bits - 0.5) < 0.001
    assert (one != other).all()


def test_parts_of_a_key_cannot_be_taken_for_others() -> None:
    assert subkey(b"k", "ab", "c") != subkey(b"k", "a", "bc")
    assert subkey(b"k", "a") != subkey(b"l", "a")
