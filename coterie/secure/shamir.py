"""Shares of a secret, of which any t give it back and fewer tell nothing (Shamir, CACM 1979), modulo 2^521 − 1."""

from collections.abc import Mapping, Sequence

PRIME = 2**521 - 1
WIDTH = 66  # bytes of a share


def shares(secret: int, coefficients: Sequence[int], count: int) -> list[int]:
    """The values at 1 … count of the polynomial of this secret and these t − 1 random coefficients."""
    found = []
    for x in range(1, count + 1):
        value = 0
        for coefficient in (*reversed(coefficients), secret):
            value = (value * x + coefficient) % PRIME
        found.append(value)
    return found


def secret_of(points: Mapping[int, int]) -> int:
    """The polynomial's value at 0, from t of its points."""
    total = 0
    for x, y in points.items():
        above, below = 1, 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        total += y * above * pow(below, -1, PRIME)
    return total % PRIME
