"""Threads where they pay."""

import pytest
import torch

from coterie.engine.threads import WORTH_SHARING, fitting


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_small_work_gets_one_thread_and_gives_the_others_back() -> None:
    with fitting(WORTH_SHARING / 2):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_large_work_keeps_its_threads() -> None:
    with fitting(WORTH_SHARING * 2):
        assert torch.get_num_threads() == 2


def test_threads_come_back_after_an_error() -> None:
    with pytest.raises(KeyError), fitting(0):
        raise KeyError
    assert torch.get_num_threads() == 2
