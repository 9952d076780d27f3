"""Through whose hands an upload goes, and the download that is made of it: traced while rounds run."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import coterie
from coterie.wire import Down, Up

ROOT = Path(coterie.__file__).parent
ITSELF = "wire.py"  # where records are defined: what one does for itself is no step of a walk
INSIDE = 3  # so deep a record is looked for in lists, tables and messages
SMALLEST = 600  # bytes of what may be a model


@contextmanager
def traced() -> Iterator[tuple[set[str], set[str]]]:
    """The files that hand such a record on, and those that only look at it, of the calls meanwhile.

    A file hands it on where one of its functions gives it back, or is given it back by what it calls.
    """
    hand_on, look = set[str](), set[str]()

    def profile(frame: FrameType, event: str, value: Any) -> None:
        name = _file(frame)
        if name is None or event not in ("call", "return"):
            return
        if event == "call" and name not in look:
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            if any(_within(frame.f_locals[each]) for each in names if each != "self"):
                look.add(name)
        elif event == "return" and _within(value):
            hand_on.update(filter(None, (name, _file(frame.f_back))))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield hand_on, look
    finally:
        sys.setprofile(before)
        look -= hand_on


def _file(frame: FrameType | None) -> str | None:
    """The file of the package that a function is in."""
    if frame is None or not Path(frame.f_code.co_filename).is_relative_to(ROOT):
        return None
    name = Path(frame.f_code.co_filename).relative_to(ROOT).as_posix()
    return None if name == ITSELF else name


def _within(value: Any, depth: int = 0) -> bool:
    """Whether it is, or holds, a record of models that crosses, or its bytes."""
    if isinstance(value, Up | Down):
        return any(t.numel() > 1 and t.is_floating_point() for t in value.tensors().values())
    if isinstance(value, bytes):
        return len(value) > SMALLEST
    if depth == INSIDE or isinstance(value, type):
        return False
    if isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, list | tuple):
        inner = list(value)
    elif is_dataclass(value):
        inner = [getattr(value, f.name, None) for f in fields(value)]
    else:  # a message of Flower's
        inner = [value.content] if hasattr(value, "metadata") and hasattr(value, "content") else []
    return any(_within(each, depth + 1) for each in inner)
