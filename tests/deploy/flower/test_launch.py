"""A run is watched to its end, and to the end of what Flower knows of it."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from coterie.deploy.flower import commands, launch
from coterie.errors import BadInput

RUNS = {"success": True, "runs": [{"run-id": "7", "status": "running"}, {"run-id": "6", "status": "finished:failed"}]}


@pytest.mark.parametrize(
    ("reply", "status"),
    [(RUNS, "running"), ({"success": True, "runs": []}, commands.UNKNOWN), ({"success": False}, None), (None, None)],
)
def test_a_run_that_flower_does_not_know_is_told_from_a_flower_that_does_not_answer(
    reply: dict[str, Any] | None, status: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_reply", lambda home, arguments: reply)
    assert commands.run_status(tmp_path, "7") == status


def test_a_run_whose_database_was_lost_ends_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, statuses = tmp_path / "coordinator" / "runs" / "three-1", iter([None, "running", commands.UNKNOWN])
    run.mkdir(parents=True)
    monkeypatch.setattr(commands, "start_run", lambda home, name: "7")
    monkeypatch.setattr(commands, "run_status", lambda home, number: next(statuses))
    monkeypatch.setattr(launch, "ASK", -1.0)
    monkeypatch.setattr(launch, "LOOK", 0.0)
    with pytest.raises(BadInput, match=r"superlink\.db was lost.*--resume three-1"):
        launch.follow(run, lambda news: None)
