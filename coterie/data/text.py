"""Speeches by role: next-character prediction (McMahan et al. 2017; Marfoq et al., NeurIPS 2021)."""

import re
import string
from pathlib import Path

import numpy as np

from coterie.data.archives import bounded, reading
from coterie.data.silo import Array, Pool
from coterie.errors import BadInput

VOCABULARY = string.printable  # 100 characters, those of the FedEM authors' model
LARGEST = 1 << 28  # bytes of text
MOST_CHARACTERS = 1 << 30  # of all samples together
_ROLE = re.compile(r"([A-Za-z][^:\n]{0,60}):")
_CODE = np.full(128, VOCABULARY.index("?"), np.int64)
_CODE[[ord(character) for character in VOCABULARY]] = np.arange(len(VOCABULARY))


def speeches(text: str) -> dict[str, str]:
    """The lines of each role, in order: a speech follows its role's name and a colon, and ends at an empty line."""
    found: dict[str, list[str]] = {}
    for block in re.split(r"\n[ \t]*\n+", text.replace("\r\n", "\n")):
        first, _, rest = block.strip("\n").partition("\n")
        role = _ROLE.fullmatch(first.strip())
        if role and rest.strip():
            found.setdefault(role[1], []).append(" ".join(rest.split()))
    return {role: " ".join(lines) for role, lines in found.items()}


def roles(name: str, file: Path, window: int, stride: int) -> Pool:
    """Samples of `window` characters and the one that follows, `stride` apart, within the lines of one role."""
    found = speeches(_read(file))
    if not found:
        raise BadInput(f"{file}: no speeches; expected a role's name and a colon on a line, and its speech below")
    x: list[Array] = []
    y: list[Array] = []
    owner: list[str] = []
    wanted = sum(max(len(lines) - window, 0) // stride for lines in found.values()) * window
    if wanted > MOST_CHARACTERS:
        raise BadInput(f"{file}: samples of {wanted} characters in all; use a smaller window or a larger stride")
    for role, lines in found.items():
        codes = encoded(lines)
        if len(codes) > window:
            view = np.lib.stride_tricks.sliding_window_view(codes, window + 1)[::stride]
            x.append(view[:, :-1])
            y.append(view[:, -1])
            owner += [role] * len(view)
    if not owner:
        raise BadInput(f"{file}: no role has more than {window} characters; use a smaller window")
    return Pool(
        name,
        np.concatenate(x),
        np.concatenate(y),
        len(VOCABULARY),
        owner=np.array(owner),
        overlap=window // stride,  # samples i and j share characters while |i - j| × stride ≤ window
    )


def encoded(text: str) -> Array:
    """Characters as numbers; one outside the vocabulary is a question mark."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return _CODE[np.where(points < 128, points, ord("?"))]


def _read(file: Path) -> str:
    try:
        with reading(file), file.open("rb") as raw:
            return bounded(raw, LARGEST, str(file)).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{file}: not text in UTF-8; give a plain text") from None
