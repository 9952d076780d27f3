"""Every random draw is keyed: the same seed and key give the same numbers, whoever else draws, in whatever order."""

import hashlib

import numpy as np


def generator(seed: int, *key: object) -> np.random.Generator:
    """A generator of its own for one purpose, e.g. `generator(seed, "batches", silo, round)`."""
    text = ",".join(_write(part) for part in (seed, *key))
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def uniform(key: bytes, size: int) -> np.ndarray:
    """Numbers between 0 and 1 that nobody without the key can tell from chance: SHAKE-256's stream."""
    bits = np.frombuffer(hashlib.shake_256(key).digest(8 * size), "<u8")
    numbers: np.ndarray = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return numbers


def gaussian(key: bytes, size: int) -> np.ndarray:
    """Standard normal numbers of the same kind."""
    from scipy.special import ndtri  # here, because no run without noise waits for it

    normal: np.ndarray = ndtri(uniform(key, size))
    return normal


def _write(part: object) -> str:
    # NumPy's 3 and Python's 3 are the same key, though their reprs differ.
    plain = part.item() if isinstance(part, np.generic) else part
    if isinstance(plain, tuple):
        return f"({','.join(_write(p) for p in plain)})"
    if not isinstance(plain, str | int | float | None):
        raise TypeError(f"a key is made of text, numbers and tuples, not {type(plain).__name__}: its repr may change")
    return repr(plain)
