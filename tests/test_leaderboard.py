"""The leaderboard made from the folders of runs (bench/leaderboard.py)."""

import json
import re
from pathlib import Path

import leaderboard
import numpy as np
import pandas as pd
import pytest
from finished_runs import read

from coterie import toml
from coterie.studies.study import check, override, select
from coterie.studies.study import read as study

PAGES = Path(__file__).parents[1] / "docs" / "results"
SILOS = [f"silo-{i}" for i in range(12)]


def run(
    folder: Path, tested: dict[str, list[np.ndarray]], picked: int, seed: int = 0, changed: tuple[str, ...] = ()
) -> Path:
    """A run whose methods have these test accuracies (silos,) after each round; validation data picked one of them."""
    folder.mkdir()
    table = override(select(study("amp-table3"), "fmnist"), changed)
    (folder / "study.toml").write_text(toml.dumps(check(table, list(tested)).as_table()), "utf-8")
    scores = {
        method: {"per_seed": [{"seed": seed, "val_picked": round(100 * float(rounds[picked].mean()), 4)}]}
        for method, rounds in tested.items()
    }
    (folder / "summary.json").write_text(json.dumps({"methods": scores}), "utf-8")
    rows = [
        (method, seed, r, silo, "test", "accuracy", value)
        for method, rounds in tested.items()
        for r, values in enumerate(rounds)
        for silo, value in zip(SILOS, values, strict=True)
    ]
    columns = ["method", "seed", "round", "silo", "split", "measure", "value"]
    pd.DataFrame(rows, columns=columns).to_parquet(folder / "results.parquet")
    return folder


def accuracies(mean: float, seed: int = 0) -> np.ndarray:
    return mean + 0.02 * np.random.default_rng(seed).normal(size=len(SILOS))


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """FedAMP is ahead everywhere at the picked round; at another round, which test data would pick, FedAvg is."""
    base = accuracies(0.7)
    near = base - 0.001 * np.array([1, -1] * 6)
    first = {
        "fedamp": [base - 0.2, base, base - 0.1],
        "heurfedamp": [base - 0.2, near, near - 0.1],
        "fedavg": [base - 0.2, base - 0.05, base + 0.2],
    }
    second = {"fedamp": [base - 0.1, base + 0.01, base], "fedavg": [base - 0.1, base - 0.06, base]}
    return [run(tmp_path / "a", first, picked=1), run(tmp_path / "b", second, picked=1, seed=1)]


def test_places_are_of_the_picked_round_and_a_mean_over_seeds(folders: list[Path]) -> None:
    (cell,) = read(folders)["amp-table3"].values()
    found = {each.method: each for each in leaderboard.places(cell)}
    assert [each.method for each in leaderboard.places(cell)] == ["fedamp", "heurfedamp", "fedavg"]
    assert [found[m].rank for m in ("fedamp", "heurfedamp", "fedavg")] == [1, 2, 3]
    assert found["fedamp"].seeds == 2 and found["heurfedamp"].seeds == 1
    values = [100 * float(np.mean(accuracies(0.7))) + gain for gain in (0, 1)]
    assert found["fedamp"].score == pytest.approx(np.mean(values), abs=1e-3)


def test_who_is_behind_in_every_silo_is_behind_and_who_is_not_is_level_with_the_best(folders: list[Path]) -> None:
    (cell,) = read(folders)["amp-table3"].values()
    found = {each.method: each for each in leaderboard.places(cell)}
    assert found["fedavg"].behind and found["fedavg"].p < 0.01
    assert not found["fedamp"].behind and not found["heurfedamp"].behind


def test_methods_without_a_common_seed_are_not_compared(tmp_path: Path) -> None:
    high, low = ([accuracies(mean)] * 2 for mean in (0.8, 0.5))
    apart = [run(tmp_path / "a", {"fedamp": high}, 1), run(tmp_path / "b", {"fedavg": low}, 1, seed=1)]
    (cell,) = read(apart)["amp-table3"].values()
    assert [(each.rank, each.behind) for each in leaderboard.places(cell)] == [(1, False), (2, False)]


@pytest.mark.parametrize("other", ["train.rounds=24", "data.dirty=0.1"])
def test_runs_of_other_rounds_or_data_are_not_ranked_among_each_other(tmp_path: Path, other: str) -> None:
    high, low = ([accuracies(mean)] * 2 for mean in (0.8, 0.5))
    apart = [run(tmp_path / "a", {"fedamp": high}, 1), run(tmp_path / "b", {"fedavg": low}, 1, changed=(other,))]
    text = leaderboard.page(read(apart))
    heads = [("fmnist", "100 rounds"), ("fmnist", "24 of 100 rounds" if "rounds" in other else "100 rounds")]
    assert re.findall(r">(\w+)<small>([^<]*)</small>", text) == heads
    assert "<small>2</small>" not in text and ("data.dirty = 0.1" in text) == ("data" in other)


def test_who_has_fewer_seeds_than_others_of_its_column_is_marked(folders: list[Path]) -> None:
    text = leaderboard.page(read(folders))
    assert re.search(r"<small>2, 1 seed</small>", text) and not re.search(r", 2 seeds</small>", text)


def test_the_page_has_every_method_and_sorts(folders: list[Path]) -> None:
    text = leaderboard.page(read(folders))
    assert text.count("<table") == 2 and "amp-table3" in text and 'data-sort="1"' in text
    assert "addEventListener" in text and "http" not in text.partition("<body>")[2]
    for method in ("fedamp", "heurfedamp", "fedavg"):
        assert f'<th scope="row">{method}</th>' in text


@pytest.mark.slow
def test_the_page_of_the_kept_runs_is_up_to_date() -> None:
    made = leaderboard.page(read(sorted((PAGES / "runs").iterdir())))
    assert made == (PAGES / "leaderboard.html").read_text("utf-8"), "python bench/leaderboard.py docs/results/runs/*"
