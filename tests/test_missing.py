"""The cells that no kept run has at full length, and running them (bench/missing.py)."""

import math
import subprocess
import sys
from pathlib import Path

import finished_runs
import missing
import pytest
from missing import Part
from run_coverage import NOT_AT_HAND, Runs, all_wanted

from coterie.runs.folder import UNFINISHED

KEPT = Path(__file__).parents[1] / "docs" / "results" / "runs"


@pytest.fixture(scope="module")
def found() -> Runs:
    return finished_runs.read(path for path in KEPT.iterdir() if path.is_dir())


def part(name: str) -> Part:
    return Part("s", "c", (name,), 0, 1.0)


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_every_cell_is_kept_at_full_length_or_missing_once(found: Runs) -> None:
    listed = [
        (p.study, p.cell, m) for p in missing.missing(found, ["em-table2", "apple-table1"], 0, 60) for m in p.methods
    ]
    whole = [each for each in all_wanted(found) if each.study in ("em-table2", "apple-table1") and each.at_hand]
    full = {(each.study, each.cell, each.method) for each in whole if each.full}
    assert sorted(listed) == sorted({(e.study, e.cell, e.method) for e in whole} - full)
    assert full
    assert not {missing.built(study, cell).data["name"] for study, cell, _ in listed} & NOT_AT_HAND


def test_a_seed_that_was_not_run_is_missing_at_full_length_too(found: Runs) -> None:
    of = [list(missing.missing(found, ["em-table3"], seed, 60)) for seed in (0, 17)]
    assert sum(len(p.methods) for p in of[0]) < sum(len(p.methods) for p in of[1])


def test_parts_keep_the_order_of_methods_and_their_seconds() -> None:
    whole = ["separate", "fedavg", "fedem"]
    made = [list(missing.parts("em-table2", "synthetic", whole, 0, {"": 1e-3}, most)) for most in (1e9, 0)]
    assert [p.methods for p in made[0]] == [tuple(whole)]
    assert [p.methods for p in made[1]] == [("separate",), ("fedavg",), ("fedem",)]
    assert made[0][0].seconds == pytest.approx(sum(p.seconds for p in made[1])) != 0


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    one = Part("em-table2", "synthetic", ("fedavg", "fedem"), 1, 1.0)
    began = one.command(tmp_path, {}, "cpu", "float32")
    assert [*began[4:6], began[began.index("--methods") + 1]] == ["em-table2", "--data", "fedavg,fedem"]
    assert "data.path" not in " ".join(began)
    (tmp_path / UNFINISHED).touch()
    assert one.command(tmp_path, {}, "cpu", "float32")[4:6] == ["--resume", str(tmp_path)]


def test_how_runs_ended_is_printed_and_what_they_print_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {
        part(name).name: script(code) for name, code in {"good": "print(1)", "bad": "raise SystemExit(3)"}.items()
    }
    missing.run_all([part("good"), part("bad")], tmp_path, commands, jobs=1, until=math.inf)
    good, bad = capsys.readouterr().out.splitlines()
    assert "good-seed0: done" in good
    assert "bad-seed0: failed (3)" in bad
    assert (tmp_path / "s-c-good-seed0.log").read_text("utf-8") == "1\n"


def test_what_is_not_done_in_time_is_stopped_and_nothing_more_begins(tmp_path: Path) -> None:
    long = subprocess.Popen(script("import time; time.sleep(60)"))
    assert missing.ended(long, until=0.0) is None
    assert long.returncode is not None
    missing.run_all([part("never")], tmp_path, {}, jobs=1, until=0.0)
    assert not list(tmp_path.iterdir())
