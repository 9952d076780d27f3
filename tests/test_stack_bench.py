"""What the page of the stack's results is made of."""

import json
from pathlib import Path

import mixing
import numpy as np
import pytest
import stack

from coterie.engine.training import Training
from coterie.errors import BadInput


def line(method: str, seed: int, right: list[str]) -> stack.Line:
    split = {"right": right, "log_loss": [0.5] * len(right)}
    return {
        "federation": "it",
        "method": method,
        "seed": seed,
        "round": 3,
        "test": split,
        "validation": split,
    }


def lines() -> list[stack.Line]:
    weak, strong = ["1100", "1000"], ["1110", "1100"]
    found = [line(m, seed, strong if m == "ditto" else weak) for m in stack.MEMBERS for seed in (0, 1)]
    spent = [
        {"federation": "it", "method": m, "cpu": (3.0 if m == "stack" else 1.0) / every, "measured": every}
        for m in stack.METHODS
        for every in (1, 20)
    ]
    return found + [line("stack", seed, ["1111", "1100"]) for seed in (0, 1)] + spent


def test_the_stack_is_set_beside_the_best_in_hindsight() -> None:
    found = stack.Compared(stack.summed(lines()))
    assert found.best == found.picked == "ditto"
    assert found.gain() == (12.5, pytest.approx(1.96 * 14.434 / 2, rel=1e-3))
    assert found.decile("stack") == pytest.approx(55.0) and found.cost() == "0.50 / 0.75"
    assert found.beside_alone() == (0, 0, 4)
    begun = line("fedavg", 2, ["1111", "1111"])  # a seed that is not whole does not count
    made = stack.summed(lines())
    assert stack.summed([*lines(), begun]) == made
    assert "| it | 2 | ditto 62.50 | 75.00 | +12.50 ± 14.1" in stack.page(made)
    assert "At 5% over all 4 silos (of a seed) of this table, 0 are worse off" in stack.page(made)


def test_the_best_by_other_seeds_is_not_chosen_by_its_own_luck() -> None:
    def lucky(method: str, seed: int) -> str:
        return "1111" if (method, seed) in (("ditto", 0), ("fedem", 1)) else "1100"

    made = [line(m, seed, [lucky(m, seed)]) for m in stack.METHODS for seed in (0, 1)]
    found = stack.Compared(stack.summed(made))
    assert found.accuracy[found.best].mean() == 75.0 and found.beforehand() == 50.0


def test_the_difference_of_deciles_has_an_interval_over_seeds() -> None:
    found = [line(m, seed, ["1100"] * 11) for m in stack.MEMBERS for seed in range(3)]
    worst = ("1100", "1110", "1000")  # the second of 11 silos, after one without a row right
    found += [line("stack", seed, ["0000", worst[seed]] + ["1111"] * 9) for seed in range(3)]
    made = stack.summed(found)
    gain, reach = stack.Compared(made).decile_gain()
    assert gain == pytest.approx(0.0) and reach == pytest.approx(4.3027 * 25 / np.sqrt(3), rel=1e-4)
    assert "| 50.0 / 50.0 | +0.0 ± 62.1 |" in stack.page(made)
    one = [each for each in made if each["seed"] == 0]
    assert "| 50.0 / 50.0 | +0.0 ± nan |" in stack.page(one)


def test_a_silo_that_loses_many_rows_is_worse_off_and_one_that_wins_many_better() -> None:
    few, many = "0" * 30 + "1" * 10, "1" * 40
    made = [line(m, 0, [many, few, few]) for m in stack.MEMBERS] + [line("stack", 0, [few, many, few])]
    kept = stack.summed([*made, {"federation": "it", "method": "fedavg", "lr": 0.1}])
    assert kept[0]["lr"] == {"fedavg": 0.1} and stack.Compared(kept).beside_alone() == (1, 1, 3)


def test_the_page_is_made_of_what_is_kept_beside_it() -> None:
    results = Path(__file__).parents[1] / "docs" / "results"
    kept = [json.loads(line) for line in (results / "stack.jsonl").read_text("utf-8").splitlines()]
    assert (results / "stack.md").read_text("utf-8") == stack.whole(kept, results / "stack.md")
    assert all(line["commit"] for line in kept)


def test_the_files_of_a_data_set_are_where_one_says(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=str(tmp_path)):
        stack.assembled("fashion-mnist-iid-mlp", 0, paths={"fashion-mnist": str(tmp_path)})


def test_what_is_done_is_not_done_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stack, "search", lambda *given: ({"lr": 0.1}, None))

    def run(done: list[stack.Line]) -> list[stack.Line]:
        return list(stack.results("tables-alike", [0], 2, done, "cpu", tmp_path))

    first = run([])
    assert [each["method"] for each in first] == [*stack.MEMBERS, *stack.METHODS]
    assert run(first) == []
    again = run(first[:-1])
    assert [each["test"] for each in again] == [first[-1]["test"]]
    kept = np.load(tmp_path / "tables-alike-0.npz")
    assert kept["names"].tolist()[-1] == "stack" and kept["test-0"].shape == (2, 8, stack.FRESH, 2)
    (tmp_path / "tables-alike.jsonl").write_text("".join(json.dumps(each) + "\n" for each in first))
    mixed = mixing.judged(
        tmp_path / "tables-alike-0.npz"
    )  # as the run mixed it, but for what is kept in half precision
    (own,) = stack.summed(first)
    assert mixed["log-loss"] == pytest.approx(own["log_loss"]["stack"], abs=1e-3)
    with mixing.ruled(mixing.RULES["uniform"]):
        assert mixing.judged(tmp_path / "tables-alike-0.npz")["log-loss"] != mixed["log-loss"]


def test_a_member_is_judged_as_in_a_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "search", lambda *given: ({"lr": 0.1}, None))
    found = {each["method"]: each for each in stack.results("tables-alike", [0], 3, [], "cpu", None) if "seed" in each}
    here = stack.assembled("tables-alike", 0)
    training = Training(rounds=3, local_epochs=2, batch_size=32, measure=stack.SPLITS, lr=0.1)
    for name in ("fedavg-ft", "fedem", "stack"):
        own = stack.make(name, {}) if name != "stack" else stack.Stack()
        picked = here.train(own, training=training).picked
        assert picked is not None and picked.round == found[name]["round"]
        right = (picked.outputs["test"][silo.name].argmax(1) == silo.test.y for silo in here.members)
        assert ["".join(map(str, each.astype(int))) for each in right] == found[name]["test"]["right"]
