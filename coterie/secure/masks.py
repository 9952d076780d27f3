"""Masks: streams of bits that nobody without the key can tell from chance, AES-256 in counter mode."""

import hmac
from typing import Any

import numpy as np

KEY = 32  # bytes


def subkey(key: bytes, *parts: bytes | str | int) -> bytes:
    """A key of its own for one purpose: HMAC-SHA-256 of parts that cannot be taken for others."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return hmac.digest(key, b"".join(len(each).to_bytes(8, "big") + each for each in encoded), "sha256")


def stream(key: bytes, size: int) -> np.ndarray:
    """So many bytes."""
    made = np.empty(size + 15, dtype=np.uint8)  # which the cipher wants to have room for
    cipher(key).update_into(bytes(size), made.data)
    return made[:size]


def cipher(key: bytes) -> Any:
    """What makes the stream of a key, piece by piece."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
