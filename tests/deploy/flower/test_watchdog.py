"""A SuperNode is started again that holds a message on which no process works any more."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from coterie.deploy.flower import programs, watchdog
from coterie.deploy.flower.programs import Program, in_session
from coterie.deploy.flower.watchdog import IDLE_SECONDS, Watchdog


def received(run: int) -> str:
    return (
        f"INFO :      [RUN {run}]\nINFO :      Receiving: query message (ID: 235a)\nINFO :      Received successfully\n"
    )


def sent(run: int) -> str:
    return f"INFO :      [RUN {run}]\nINFO :      Sending: query message (ID: 22cb)\nINFO :      Sent successfully\n"


RECEIVED, SENT = received(1), sent(1)


class Node:
    """A SuperNode's log, a clock, and whether a training process is there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.now, self.working = folder / "supernode.log", 0.0, False
        self.log.write_text("INFO : of the start before\n" + RECEIVED)
        program = Program("SuperNode", [], {}, self.log)
        program.before = self.log.stat().st_size
        monkeypatch.setattr(watchdog, "monotonic", lambda: self.now)
        monkeypatch.setattr(watchdog, "works", lambda program: self.working)
        self.watchdog = Watchdog(program)

    def wedged(self, seconds: float, said: str = "") -> bool:
        with self.log.open("a") as file:
            file.write(said)
        before = self.watchdog.wedged()
        self.now += seconds
        return before or self.watchdog.wedged()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_a_message_that_nobody_works_on_for_long_is_noticed(node: Node) -> None:
    assert not node.wedged(IDLE_SECONDS - 1, RECEIVED)
    assert node.wedged(2)


def test_a_log_that_was_moved_on_is_read_from_its_beginning(node: Node) -> None:
    node.wedged(0, RECEIVED)
    os.truncate(node.log, 0)
    assert not node.wedged(IDLE_SECONDS + 1, SENT)


def test_a_message_that_a_process_works_on_may_take_its_time(node: Node) -> None:
    node.working = True
    assert not node.wedged(100 * IDLE_SECONDS, RECEIVED)
    node.working = False
    assert not node.wedged(IDLE_SECONDS - 1)  # from here on it has as long as any
    assert node.wedged(2)


def test_a_silo_that_is_asked_nothing_is_well(node: Node) -> None:
    assert not node.wedged(100 * IDLE_SECONDS)
    assert not node.wedged(100 * IDLE_SECONDS, RECEIVED + SENT)


def test_an_old_runs_reply_is_not_taken_for_the_new_runs(node: Node) -> None:
    assert node.wedged(IDLE_SECONDS + 1, received(2) + sent(1))


def test_a_reply_that_is_one_message_late_leaves_one_message_held(node: Node) -> None:
    assert node.wedged(IDLE_SECONDS + 1, received(2) + sent(1) + received(2) + sent(2))


def test_a_reply_to_nothing_that_was_received_does_not_count_for_the_next_message(node: Node) -> None:
    node.wedged(0, sent(1))
    assert node.wedged(IDLE_SECONDS + 1, received(1))


def test_a_message_whose_lines_come_one_by_one_belongs_to_its_run(node: Node) -> None:
    *begun, last = received(2).splitlines(keepends=True)
    node.wedged(0, "".join(begun))
    assert not node.wedged(IDLE_SECONDS + 1, last + sent(2))


def test_a_line_that_is_just_being_written_is_read_when_it_is_whole(node: Node) -> None:
    assert not node.wedged(1, RECEIVED + SENT[:20])
    assert not node.wedged(100 * IDLE_SECONDS, SENT[20:])


def test_where_processes_cannot_be_looked_at_a_silo_is_taken_to_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PROCESSES", tmp_path / "proc")
    assert in_session(1, "flwr-clientapp")


def test_processes_are_found_by_their_session_and_name() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        Path("/proc/self/comm").write_text("flwr-clientapp")
        os.write(writer, b".")
        signal.pause()
    try:
        os.read(reader, 1)
        assert in_session(child, "flwr-clientapp") and not in_session(child, "another")
        assert not in_session(os.getsid(0), "flwr-clientapp")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert not in_session(child, "flwr-clientapp")  # dead, though nobody has taken note yet
        os.waitpid(child, 0)
