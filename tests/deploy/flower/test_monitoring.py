"""What monitoring shows of a federation: gathered in one place from the files that its parties keep."""

import json
import sqlite3
import time
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
from coterie.deploy import parties
from coterie.deploy.certificates import days_left
from coterie.deploy.flower import commands
from coterie.deploy.flower.monitoring import Figures, figures, silo_figures
from coterie.deploy.home import note_progress, progress, write_node
from coterie.measure.gaussian import gaussian_epsilon

NOW = 1_800_000_000.0


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of three silos: north online, south gone for an hour, east never there."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    parties.new_federation(tmp_path / "fed", ["north", "south", "east"], "127.0.0.1", 9443, None)
    folder = tmp_path / "fed" / "coordinator"
    database = folder / commands.DATABASE
    database.parent.mkdir()
    with sqlite3.connect(database) as opened:
        opened.execute("CREATE TABLE node (node_id INTEGER, status TEXT, online_until REAL, heartbeat_interval REAL)")
        seen = [(1, "online", NOW + 50, 30), (2, "online", NOW - 3600, 30), (-3, "registered", None, 30)]
        opened.executemany("INSERT INTO node VALUES (?, ?, ?, ?)", seen)
    for name, number in {"north": 1, "south": 2, "east": 2**64 - 3}.items():
        write_node(folder, name, number)
    return folder


def run(coordinator: Path, **news: object) -> None:
    folder = coordinator / "runs" / "study-1"
    folder.mkdir(parents=True)
    (folder / "asked.toml").touch()
    (folder / "progress.json").write_text(json.dumps(news))


def test_before_any_run_there_are_silos_a_disk_and_a_certificate(coordinator: Path) -> None:
    found = figures(coordinator)
    assert {name: each.state for name, each in found.silos.items()} == {
        "north": "online",
        "south": "offline",
        "east": "registered",
    }
    contacts = {name: each.contact for name, each in found.silos.items()}
    assert contacts == {"north": NOW - 10, "south": NOW - 3600, "east": None}
    assert found.free > 0 and found.run == "" and found.epsilon is None
    assert found.certificate == pytest.approx(NOW + 86400 * days_left(coordinator / "server.pem"), abs=60)


def test_a_run_shows_its_round_its_bytes_who_was_rejected_and_who_is_silent(coordinator: Path) -> None:
    news = {"state": "training", "method": "fedamp", "seed": 1, "round": 3, "rounds": 20, "time": NOW - 90}
    run(coordinator, **news, waiting=["south"], bytes_up=300, bytes_down=500, rejected=2, score=0.5, measure="auroc")
    found = figures(coordinator)
    assert (found.run, found.state, found.method, found.round, found.rounds) == (
        "study-1",
        "training",
        "fedamp",
        3,
        20,
    )
    assert (found.bytes_up, found.bytes_down, found.rejected) == (300, 500, 2)
    assert (found.score, found.measure) == (0.5, "auroc")
    assert [name for name, each in found.silos.items() if each.silent] == ["south"]


def test_who_was_asked_a_moment_ago_is_not_silent(coordinator: Path) -> None:
    run(coordinator, state="training", waiting=["south"], time=NOW - 5)
    assert not any(each.silent for each in figures(coordinator).silos.values())


def test_the_privacy_that_a_run_has_spent_is_its_summarys(coordinator: Path) -> None:
    run(coordinator, state="finished")
    (coordinator / "runs" / "study-1" / "summary.json").write_text(json.dumps({"privacy": {"epsilon": 6.5}}))
    assert figures(coordinator).epsilon == 6.5


def test_a_database_that_cannot_be_read_and_a_file_half_written_leave_the_rest(coordinator: Path) -> None:
    run(coordinator)
    (coordinator / "runs" / "study-1" / "progress.json").write_text("{")
    (coordinator / commands.DATABASE).write_bytes(b"nothing")
    found = figures(coordinator)
    assert isinstance(found, Figures) and {each.state for each in found.silos.values()} == {"unknown"}
    assert found.run == "study-1" and found.state == ""


def test_a_half_written_progress_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text("{")
    note_progress(tmp_path, state="failed")
    assert progress(tmp_path)["state"] == "failed"


def test_a_silo_shows_what_it_has_answered_and_spent(tmp_path: Path, coordinator: Path) -> None:
    silo = tmp_path / "fed" / "silos" / "north"
    (silo / "spent.json").write_text(json.dumps({"answers": 7, "squares": 2.0, "bare": 0}))
    (silo / "events.log").write_text("2026-01-01 00:00:00 answered train\n2026-01-01 00:00:01 refused train\n")
    found = silo_figures(silo)
    assert (found.name, found.answers, found.refused) == ("north", 7, 1)
    assert found.epsilon == gaussian_epsilon(2.0, 1e-5)
    assert found.contact == pytest.approx((silo / "events.log").stat().st_mtime)
    assert not found.connected
    (silo / "spent.json").write_text(json.dumps({"answers": 8, "squares": 2.0, "bare": 1}))
    assert silo_figures(silo).epsilon == float("inf")
    (silo / "spent.json").write_text(json.dumps({"answers": 8, "squares": 2.0, "bare": 0, "steps": [[0.1, 1.0, 9.0]]}))
    assert silo_figures(silo).epsilon is None  # of single records: not to be had here, and never less than it is
