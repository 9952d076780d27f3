"""What the page of the stack's results is made of."""

import pytest
import stack


def line(method: str, seed: int, right: list[str], cpu: float = 1.0) -> stack.Line:
    split = {"right": right, "log_loss": [0.5] * len(right)}
    return {
        "federation": "it",
        "method": method,
        "seed": seed,
        "cpu": cpu,
        "round": 3,
        "test": split,
        "validation": split,
    }


def lines() -> list[stack.Line]:
    weak, strong = ["1100", "1000"], ["1110", "1100"]
    found = [line(m, seed, strong if m == "ditto" else weak) for m in stack.MEMBERS for seed in (0, 1)]
    return found + [line("stack", seed, ["1111", "1100"], cpu=3.0) for seed in (0, 1)]


def test_the_stack_is_set_beside_the_best_in_hindsight() -> None:
    found = stack.Compared(lines())
    assert found.best == found.picked == "ditto"
    assert found.gain() == (12.5, pytest.approx(1.96 * 14.434 / 2, rel=1e-3))
    assert found.decile("stack") == pytest.approx(55.0) and found.cost() == 0.5
    assert found.worse() == (0, 4)
    begun = line("fedavg", 2, ["1111", "1111"])  # a seed that is not whole does not count
    assert stack.page([*lines(), begun]) == stack.page(lines())
    assert "| it | ditto 62.50 | 75.00 | +12.50 ± 14.1" in stack.page(lines())


def test_a_silo_that_loses_many_rows_is_worse_off() -> None:
    made = [line(m, 0, ["1" * 40]) for m in stack.MEMBERS] + [line("stack", 0, ["0" * 30 + "1" * 10])]
    assert stack.Compared([*made, {"federation": "it", "method": "fedavg", "lr": 0.1}]).worse() == (1, 1)


def test_what_is_done_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "search", lambda *given: ({"lr": 0.1}, None))
    first = list(stack.results("tables-alike", 1, 1, []))
    assert [each["method"] for each in first] == [*stack.MEMBERS, *stack.MEMBERS, "stack"]
    assert list(stack.results("tables-alike", 1, 1, first)) == []
    again = list(stack.results("tables-alike", 1, 1, first[:-1]))
    assert [each["test"] for each in again] == [first[-1]["test"]]
