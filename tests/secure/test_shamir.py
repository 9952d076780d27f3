"""Shares of a secret: a known polynomial, any t of them, and fewer."""

from itertools import combinations

import pytest

from coterie.secure.shamir import PRIME, WIDTH, secret_of, shares


def test_a_polynomial_by_hand() -> None:
    """f(x) = 1234 + 166 x + 94 x², a usual example of the scheme."""
    found = shares(1234, [166, 94], 6)
    assert found == [1494, 1942, 2578, 3402, 4414, 5614]
    for chosen in combinations(range(1, 7), 3):
        assert secret_of({x: found[x - 1] for x in chosen}) == 1234


def test_values_wrap_around_the_prime() -> None:
    secret, others = PRIME - 5, [PRIME - 7, 2**520 + 11]
    found = shares(secret, others, 4)
    assert found[1] == (secret + 2 * others[0] + 4 * others[1]) % PRIME
    assert secret_of({2: found[1], 3: found[2], 4: found[3]}) == secret
    assert all(0 <= each < PRIME < 256**WIDTH for each in found)


def test_fewer_than_t_are_those_of_any_other_secret_too() -> None:
    """For every secret there is a polynomial through two given points of one of degree two."""
    two = {1: 1494, 2: 1942}
    for secret in (0, 1, 99, PRIME - 1):
        third = {0: secret, **two}
        at_three = sum(
            y * _basis(x, 3, list(third)) for x, y in third.items()
        ) % PRIME  # fmt: skip
        assert secret_of({**two, 3: at_three}) == secret


def _basis(x: int, at: int, points: list[int]) -> int:
    made = 1
    for other in points:
        if other != x:
            made = made * (at - other) * pow(x - other, -1, PRIME) % PRIME
    return made


def test_the_prime_is_one() -> None:
    """Lucas and Lehmer's test of Mersenne numbers."""
    s = 4
    for _ in range(521 - 2):
        s = (s * s - 2) % PRIME
    assert s == 0


def test_a_wrong_share_gives_another_secret() -> None:
    found = shares(1234, [166, 94], 3)
    assert secret_of({1: found[0], 2: found[1] + 1, 3: found[2]}) != 1234


def test_the_same_point_twice_has_no_secret() -> None:
    with pytest.raises(ValueError):
        secret_of({1: 5, 1 + PRIME: 7})
