"""The one error a person is meant to read: what was wrong, where, what to do."""

import difflib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONGEST = 2000  # characters of an error


def plain(text: str, longest: int) -> str:
    """One line that is safe on a terminal and in a log, whoever wrote it: no control characters, and no flood."""
    words = " ".join(text[: 4 * longest].split())
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in words[:longest])
    return f"{line}{'…' * (len(words) > longest)}"


class BadInput(Exception):
    """A mistake in what the user gave; the command line prints it as one line and exits with code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(plain(message, LONGEST))  # what it quotes may be anybody's

    @property
    def public(self) -> str:
        """What of it others may hear."""
        return str(self)


class BadData(BadInput):
    """A mistake in a silo's own data: what it says may quote a row, so it is for the silo's owner alone."""

    public = "its data cannot be used; the silo's own log says why"


class Stopped(Exception):
    """Work that a person or the system stopped; says how to go on, and the command exits with code 130."""


def shown(value: object, longest: int = 200) -> str:
    """A value as an error quotes it: in a few words, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, tables within tables without end
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= longest else f"{text[:longest]}…"


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known one, or all of them."""
    names = sorted(set(known))
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names) or 'none'}"


def first_line(error: BaseException) -> str:
    """What an error of others says, in one line; its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def refused(where: object, remedy: str) -> Iterator[None]:
    """What the system refuses meanwhile (no right, no room) as an error in one line: where, why, what to do."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{where}: {error.strerror or error}; {remedy}") from None


def warn(message: str) -> None:
    """Tell a person on stderr, in one line, what went another way than planned; the work goes on."""
    sys.stderr.write(f"coterie: {plain(message, LONGEST)}\n")
