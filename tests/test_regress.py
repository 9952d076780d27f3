"""The guard against slower kernels (bench/regress.py)."""

import json

import pytest
import regress


def figures(ratio: float, low: float | None = None, high: float | None = None) -> dict[str, float]:
    return {
        "ours_ms": 1.0,
        "sequential_ms": ratio,
        "ratio": ratio,
        "ratio_low": ratio if low is None else low,
        "ratio_high": ratio if high is None else high,
    }


@pytest.fixture
def kept(tmp_path, monkeypatch):
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"cpu a": figures(10.0), "cpu b": figures(4.0)}), "utf-8")
    monkeypatch.setattr(regress, "KEPT", path)
    return path


def measuring(monkeypatch, **found):
    named = {f"cpu {name}": each for name, each in found.items()}
    monkeypatch.setattr(regress, "measured", lambda device, only, repeat: named)


def test_a_slower_work_comes_first_and_is_the_exit_code(kept, monkeypatch, capsys):
    measuring(monkeypatch, b=figures(4.2), a=figures(7.0, 6.0, 8.0))
    assert regress.main([]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("cpu a: ratio 7.00 (6.00 to 8.00), 0.70 of the kept 10.00") and first.endswith("SLOWER")
    assert second.startswith("cpu b") and "SLOWER" not in second


def test_one_good_turn_in_a_noisy_run_is_not_slower(kept, monkeypatch):
    measuring(monkeypatch, a=figures(7.0, 5.0, 9.5))
    assert regress.main([]) == 0


def test_figures_are_kept_when_asked_and_only_then(kept, monkeypatch):
    measuring(monkeypatch, a=figures(7.0), c=figures(2.0))
    regress.main([])
    assert "cpu c" not in json.loads(kept.read_text("utf-8"))
    assert regress.main(["--keep"]) == 0
    found = json.loads(kept.read_text("utf-8"))
    assert found["cpu a"]["commit"] == found["cpu c"]["commit"] == regress.commit() and "commit" not in found["cpu b"]
    assert found["cpu a"]["ratio"] == 7.0 and found["cpu b"]["ratio"] == 4.0 and found["cpu c"]["ratio"] == 2.0


def test_the_kept_figures_are_those_of_the_page():
    page = (regress.KEPT.parents[1] / "performance.md").read_text("utf-8")
    for name, each in json.loads(regress.KEPT.read_text("utf-8")).items():
        assert f"`{name.split()[1]}`" in page and each["ratio_low"] <= each["ratio"] <= each["ratio_high"]


def test_of_which_commit_the_kept_figure_is_stands_beside_it(kept, monkeypatch, capsys):
    kept.write_text(json.dumps({"cpu a": figures(10.0) | {"commit": "46b6afc"}}), "utf-8")
    measuring(monkeypatch, a=figures(11.0))
    assert regress.main([]) == 0
    assert "1.10 of the kept 10.00 at 46b6afc" in capsys.readouterr().out
