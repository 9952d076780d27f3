"""Threads where they pay: on small work they only wait for each other, and on a busy machine they wait long."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
