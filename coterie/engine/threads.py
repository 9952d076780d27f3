"""Threads where they pay: on small work they only wait for each other, and on a busy machine they wait long."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")
WORTH_SHARING = 1e8  # multiply-adds of one call of the model, forward and backward


@contextmanager
def fitting(work: float) -> Iterator[None]:
    """One thread for calls of so much work, where more would not pay."""
    before = torch.get_num_threads()
    if work < WORTH_SHARING:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(work: Callable[[T], R], parts: Sequence[T], threads: int) -> list[R]:
    """Work on parts that have nothing to do with each other, each in one of so many threads."""
    before = torch.get_num_threads()

    def alone(part: T) -> R:
        torch.set_num_threads(1)  # of this thread
        with torch.no_grad():  # which is each thread's own
            return work(part)

    pool = ThreadPoolExecutor(threads)
    try:
        return list(pool.map(alone, parts))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # who stops a run does not wait for a step that may be long
        torch.set_num_threads(before)  # a matrix library's own number is everybody's
