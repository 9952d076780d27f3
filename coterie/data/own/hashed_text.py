"""Free text as a fixed number of inputs: words and pairs of words, hashed, so that no silo declares its vocabulary."""

import re
from functools import cache
from itertools import pairwise
from zlib import crc32

import numpy as np
from pandas import Series

from coterie.data.silo import Array

WIDTH = 256
WORD = re.compile(r"\w+")


def hashed(text: Series, into: Array) -> None:
    """Fill `into` (n, WIDTH), of zeros, with rows of length 1; a text that is missing stays 0."""
    place = cache(_place)
    for row, value in zip(into, text, strict=True):
        words = WORD.findall(value.lower()) if isinstance(value, str) else []
        for gram in (*words, *map(" ".join, pairwise(words))):
            at, sign = place(gram)
            row[at] += sign  # of either sign, so that words that meet cancel on average
        length = float(np.linalg.norm(row))
        if length:
            row /= length


def _place(gram: str) -> tuple[int, int]:
    """Where a word or pair counts, and with which sign: by a checksum, which is the same in every process."""
    code = crc32(gram.encode(errors="replace"))
    return code % WIDTH, 1 if code < 1 << 31 else -1
