"""What services write down: lines with their time, bounded on disk, as JSON where a machine reads them."""

import io
import json
from datetime import datetime
from pathlib import Path

import pytest

from coterie.deploy import logs
from coterie.deploy.logs import Follower, append, rotate, service_log


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LARGEST", 300)


def test_a_line_is_shown_as_it_is_and_kept_with_its_time(tmp_path: Path) -> None:
    shown = io.StringIO()
    with service_log(tmp_path, "north", "plain", shown) as say:
        say("connecting")
    assert shown.getvalue() == "connecting\n"
    when, _, rest = (tmp_path / "logs" / "service.log").read_text().partition(" north: ")
    assert datetime.fromisoformat(when).tzinfo is not None and rest == "connecting\n"


def test_as_json_every_line_is_an_object_wherever_it_goes(tmp_path: Path) -> None:
    shown = io.StringIO()
    with service_log(tmp_path, "north", "json", shown) as say:
        say('it said "no"')
    assert shown.getvalue() == (tmp_path / "logs" / "service.log").read_text()
    table = json.loads(shown.getvalue())
    assert datetime.fromisoformat(table.pop("time")).tzinfo is not None
    assert table == {"party": "north", "message": 'it said "no"'}


def test_what_a_service_writes_stays_bounded(tmp_path: Path, small: None) -> None:
    with service_log(tmp_path, "north", "plain", io.StringIO()) as say:
        for number in range(200):
            say(f"line {number}")
    files = sorted((tmp_path / "logs").iterdir())
    assert [file.name for file in files] == ["service.log", *(f"service.log.{n}" for n in range(1, logs.KEPT + 1))]
    assert all(file.stat().st_size <= 300 for file in files)
    assert "line 199" in files[0].read_text()


def test_a_programs_log_is_moved_on_while_it_is_written_to(tmp_path: Path, small: None) -> None:
    log = tmp_path / "supernode.log"
    with log.open("ab", buffering=0) as program:  # as its process has it open
        program.write(b"x" * 200 + b"\n")
        assert not rotate(log)
        program.write(b"y" * 200 + b"\n")
        assert rotate(log)
        program.write(b"z\n")
    assert log.read_bytes() == b"z\n"
    assert (tmp_path / "supernode.log.1").read_bytes() == b"x" * 200 + b"\n" + b"y" * 200 + b"\n"


def test_events_are_followed_over_a_rotation_without_a_loss(tmp_path: Path, small: None) -> None:
    events, follow = tmp_path / "events.log", Follower(tmp_path / "events.log")
    found = list[str]()
    for number in range(40):
        append(events, f"event {number}")
        if number % 3 == 0:
            found += follow.new()
    found += follow.new()
    assert [line.partition(" event ")[2] for line in found] == [str(number) for number in range(40)]
    assert (tmp_path / "events.log.1").exists()


def test_what_was_there_before_is_not_followed(tmp_path: Path) -> None:
    append(tmp_path / "events.log", "before")
    follow = Follower(tmp_path / "events.log")
    assert follow.new() == []
    append(tmp_path / "events.log", "after")
    (line,) = follow.new()
    assert line.endswith(" after")
