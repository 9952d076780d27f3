"""The one error a person is meant to read: what was wrong, where, what to do."""

import difflib
from collections.abc import Iterable


class BadInput(Exception):
    """A mistake in what the user gave; the command line prints it as one line and exits with code 2."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names) or 'none'}"
