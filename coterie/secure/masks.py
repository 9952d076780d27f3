"""Masks: streams of bits that nobody without the key can tell from chance, AES-256 in counter mode."""

import hmac

import numpy as np
import torch
from torch import Tensor

KEY = 32  # bytes


def subkey(key: bytes, *parts: bytes | str | int) -> bytes:
    """A key of its own for one purpose: HMAC-SHA-256 of parts that cannot be taken for others."""
    said = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return hmac.digest(key, b"".join(len(each).to_bytes(8, "big") + each for each in said), "sha256")


def stream(key: bytes, size: int) -> np.ndarray:
    """So many bytes."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    made = np.empty(size + 15, dtype=np.uint8)  # which the cipher wants to have room for
    Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update_into(bytes(size), made.data)
    return made[:size]


def mask(key: bytes, size: int) -> Tensor:
    """So many whole numbers modulo 2^64, each as likely as any other: (size,)."""
    return torch.from_numpy(stream(key, 8 * size).view("<i8"))
