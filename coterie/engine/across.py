"""Rows whose columns, and silos that, may be spread over several processes: what sums over them all goes through here.

A server's half that is written over whole rows is right for some of their columns too, as long as it treats columns
alike: means and mixtures do. What adds columns up (an inner product, a length) is `total` of the part here. In one
process both functions hand back what they are given.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Change = Callable[[Tensor], Tensor]


def as_it_is(values: Tensor) -> Tensor:
    """In one process there is nothing to bring together."""
    return values


_TOTAL: ContextVar[Change] = ContextVar("total", default=as_it_is)
_ALL_SILOS: ContextVar[Change] = ContextVar("all silos", default=as_it_is)


def total(part: Tensor) -> Tensor:
    """A sum over all columns, of the sum over the columns here."""
    return _TOTAL.get()(part)


def all_silos(values: Tensor) -> Tensor:
    """What is known of each silo, in the order of the roster, of what is known of the silos here."""
    return _ALL_SILOS.get()(values)


@contextmanager
def spread(over_columns: Change = as_it_is, over_silos: Change = as_it_is) -> Iterator[None]:
    """How sums and silos are brought together meanwhile."""
    tokens = _TOTAL.set(over_columns), _ALL_SILOS.set(over_silos)
    try:
        yield
    finally:
        _TOTAL.reset(tokens[0])
        _ALL_SILOS.reset(tokens[1])
