"""Runs side by side."""

import io

import pandas as pd
import pytest
from command import call
from rich.console import Console

from coterie.errors import BadInput
from coterie.report.comparison import changes, comparison, settings
from coterie.runs.read import Run

NONE = pd.DataFrame()


def run(scores, toml="", key="val_picked"):
    best = {"val_picked_loss": {"best_loss": 0.0}}.get(key, {})
    methods = {
        method: {
            key: sum(values) / len(values),
            **best,
            "per_silo_picked": {f"s{i}": float(v) for i, v in enumerate(values)},
        }
        for method, values in scores.items()
    }
    return Run("study", methods, NONE, about={"toml": toml})


def printed(runs):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(comparison(runs))
    return " ".join(console.export_text().split())


def test_a_change_is_paired_over_the_silos_that_both_have():
    first = run({"amp": [50, 60, 70, 80, 90, 40], "avg": [1, 2]})
    second = run({"amp": [51, 62, 73, 84, 95], "avg": [1, 2], "new": [5]})
    amp, avg = changes([first, second])
    assert (amp.method, amp.silos, amp.difference) == ("amp", 5, pytest.approx(3.0))
    assert amp.p_holm == pytest.approx(2 * 2 / 2**5)  # Wilcoxon's exact p of five, twice
    assert (avg.difference, avg.p_holm) == (0.0, 1.0)


def test_what_is_significant_is_marked():
    low, high = list(range(10)), [v + 1 + v / 100 for v in range(10)]
    text = printed({"a": run({"amp": low}), "b": run({"amp": high})})
    assert "+1.05*" in text and "0.002" in text
    text = printed({"a": run({"amp": low}), "b": run({"avg": high})})
    assert "*" not in text.split("Val-picked")[0]


def test_less_loss_is_better():
    text = printed(
        {name: run({"amp": losses}, key="val_picked_loss") for name, losses in (("a", [2, 2]), ("b", [1, 1.5]))}
    )
    assert "-0.75" in text and "Val-picked test loss" in text
    with pytest.raises(BadInput, match="like with like"):
        comparison({"a": run({"amp": [2.0]}, key="val_picked_loss"), "b": run({"amp": [50]})})


def test_the_settings_that_differ_are_listed():
    one = run({"amp": [1]}, 'name = "a"\n[train]\nlr = 0.1\nrounds = 3\n[methods.amp]\ntau = 0.5\n[methods.x]\ny = 1')
    two = run({"amp": [1]}, 'name = "b"\n[train]\nlr = 0.2\nrounds = 3\n[methods.amp]\ntau = 0.9\n')
    assert settings([one, two]) == {"train.lr": ["0.1", "0.2"], "methods.amp.tau": ["0.5", "0.9"]}


def test_other_data_are_told():
    one, two = (run({"amp": [1]}, f"seeds = [{i}]") for i in range(2))
    assert "different data or seeds" in printed({"a": one, "b": two})
    assert "different data or seeds" not in printed({"a": one, "b": one})


def test_the_command(run_folder, capsys):
    assert call("compare", run_folder) == 2
    assert "two or more" in capsys.readouterr().err
    assert call("compare", run_folder, run_folder) == 2
    assert "given twice" in capsys.readouterr().err
    assert call("compare", run_folder, run_folder.parent / "out" / ".." / "out") == 0
    assert "fedamp" in capsys.readouterr().out


def test_a_significant_change_is_green_where_it_is_for_the_better():
    low, high = [v / 10 for v in range(10)], [v / 10 + 1 + v / 100 for v in range(10)]
    for key, first, second, colour in (
        ("val_picked", low, high, 32),
        ("val_picked", high, low, 31),
        ("val_picked_loss", low, high, 31),
        ("val_picked_loss", high, low, 32),
    ):
        out = io.StringIO()
        runs = {"a": run({"amp": first}, key=key), "b": run({"amp": second}, key=key)}
        Console(file=out, width=100, force_terminal=True, color_system="standard").print(comparison(runs))
        assert f"\x1b[1;{colour}m" in out.getvalue()
