"""Inputs made from valid ones: a few bytes changed, cut, doubled or replaced by numbers that headers lie with."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

LIES = [n.to_bytes(width, order) for width in (1, 2, 4, 8) for order in ("little", "big")  # type: ignore[arg-type]
        for n in (0, 1, 2**7, 2**8 - 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 10**12, 2**63 - 1, 2**63, 2**64 - 1)
        if n < 2 ** (8 * width)]  # fmt: skip


@st.composite
def mutated(draw: Callable[..., Any], valid: bytes, front: int = 0) -> bytes:
    """A valid input after up to four accidents; `front`: most of them among so many first bytes."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        size = len(data)
        place = draw(st.integers(0, min(front, size)) if front and draw(st.booleans()) else st.integers(0, size))
        kind = draw(st.sampled_from(["lie", "byte", "cut", "drop", "insert", "double"]))
        if kind == "lie":
            lie = draw(st.sampled_from(LIES))
            data[place : place + len(lie)] = lie
        elif kind == "byte" and place < size:
            data[place] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[place:]
        elif kind == "drop":
            del data[place : place + draw(st.integers(1, 16))]
        elif kind == "insert":
            data[place:place] = draw(st.binary(max_size=16))
        elif kind == "double":
            data[place:place] = data[place : place + 64]
    return bytes(data)


def bytes_like(*valid: bytes, front: int = 0) -> st.SearchStrategy[bytes]:
    """Mostly mutations of valid inputs, sometimes anything."""
    return st.one_of(*(mutated(each, front) for each in valid), st.binary(max_size=200))


names = st.one_of(
    st.sampled_from(
        [
            "", ".", "..", "../x", "../../../../tmp/x", "/etc/passwd", "a/b", "a\\b", "C:\\x", "\0", "a\0b",
            "CON", "-rf", "~", "~root",
            "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "<!--", "]]>", "&lt;", "'\"><b>",
            "=cmd|' /C calc'!A0", "+1+1", "@SUM(A1)", "\x1b]0;owned\x07", "\x1b[2J",
            "[bold]", "[/]", "[/b]x", "$x$", "%{x}", "{0}",
            "\u202eevil", "ﷺ", "é", "e\u0301", "\ud800", "\udfff", "\uffff",
            "a" * 300, "é" * 300, "\n", "a\nb", "\r", "\t", " ", "nan", "inf", "None",
        ]
    ),
    st.text(max_size=40),
    st.text(alphabet="ab./\\-_ <>&'\"=+@[]{}$%\0\n\x1b", max_size=40),
)  # fmt: skip

numbers = st.one_of(
    st.integers(-3, 20),
    st.sampled_from(
        [10**6, 10**9, 10**12, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**64), 10**40, 10**400]
    ),
    st.floats(),
    st.sampled_from([1e308, -1e308, 5e-324, 0.0, -0.0, 0.5, 1.0]),
)
