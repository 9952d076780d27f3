"""Threads where they pay."""

import pytest
import torch
from plain import CLASSES, make_engine, make_silos
from torch import nn

from coterie.engine import simulate
from coterie.engine.rounds import run_rounds
from coterie.engine.threads import WORTH_SHARING, fitting, side_by_side
from coterie.methods import make


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(5, CLASSES))


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


def test_parts_are_worked_on_in_threads_of_one_thread_and_come_back_in_order() -> None:
    def work(part: int) -> tuple[int, int, bool]:
        return part, torch.get_num_threads(), torch.is_grad_enabled()

    assert side_by_side(work, range(5), 2) == [(part, 1, False) for part in range(5)]
    assert torch.get_num_threads() == 2


def test_an_error_in_one_part_is_told() -> None:
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda part: 1 / part, [1, 0, 2], 2)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("rows", ["all", 2])
@pytest.mark.parametrize("method", ["fedavg", "fedamp", "fedem", "apple", "fedfomo", "fedavg-ft"])
def test_silos_side_by_side_are_as_one_after_another(method: str, rows: int | str, monkeypatch) -> None:
    used = []

    def told(work, parts, threads):
        used.append(len(parts))
        return side_by_side(work, parts, threads)

    monkeypatch.setattr(simulate, "side_by_side", told)
    results = []
    for worth in (1e9, 1.0):
        monkeypatch.setattr(simulate, "WORTH_SHARING", worth)
        e = make_engine(linear, make_silos((9, 14, 3, 7, 11)), make(method, {}), rows, rounds=2)
        e.model.probe(torch.zeros(2, 5, dtype=torch.float64))
        outcome = run_rounds(e.method, e, e.roster, e.model, e.training)
        results.append(outcome.results[-1]["value"].to_numpy())
        assert (worth > 1) == (not used)
    assert set(used) == {2 if rows == "all" else 3}
    assert results[0] == pytest.approx(results[1], rel=1e-9)
