"""How long Flower's loops wait, and what a silo's programs hold while they do."""

import subprocess
import sys
import threading
from importlib import import_module
from inspect import getsource
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from coterie.deploy.flower import commands, pace, superexec, supernode
from coterie.deploy.flower.pace import SHORTEST, Pace
from coterie.errors import BadInput


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses = list[float]()
    monkeypatch.setattr(pace, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses)))
    return pauses


def test_a_pause_is_a_tenth_of_what_was_waited_and_never_longer_than_flowers(slept: list[float]) -> None:
    waits = Pace()
    while sum(slept) < 100:
        waits.sleep(3)
    for place in range(1, len(slept)):
        assert slept[place] == pytest.approx(min(3, max(SHORTEST, sum(slept[:place]) / 10)))
    waits.again()
    waits.sleep(3)
    assert slept[-1] == SHORTEST and max(slept) == 3


def test_a_silo_looks_soon_again_for_what_follows_an_answer(slept: list[float]) -> None:
    sleep = supernode.Tasks().sleep(Pace(), Pace())
    for _ in range(100):
        sleep(3)  # for a message
    assert slept[-1] == 3
    sleep(0.5)  # one came: for its reply
    sleep(3)
    assert slept[-2:] == [SHORTEST, SHORTEST]


def test_who_asked_and_was_held_asks_again_at_once(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Pace()
    for _ in range(100):
        waits.sleep(3)
    assert slept[-1] == 3
    now = sum(slept) + pace.HELD + 1
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    waits.sleep(3)
    assert slept[-1] == SHORTEST


def test_a_pause_ends_when_what_it_waits_for_comes() -> None:
    came = threading.Event()
    came.set()
    Pace(came).sleep(3600)
    assert not came.is_set()


def test_flowers_loops_wait_by_the_name_that_is_replaced() -> None:
    """And those of a SuperNode can be known by how long they would wait."""
    node = import_module("flwr.supernode.start_client_internal")
    executor = import_module("flwr.supercore.superexec.run_superexec")
    assert "time.sleep(3)" in getsource(node.start_client_internal)
    assert f"time.sleep({supernode.REPLY})" in getsource(node._push_messages)
    assert "time.sleep(task_poll_interval)" in getsource(executor.run_superexec)
    assert "executor.reconcile()" in getsource(executor.run_superexec)


def test_what_is_on_its_way_is_looked_for_soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    flower = pace.inflatable_utils
    for each in (flower.pull_objects, flower.pull_and_inflate_object_from_tree):
        monkeypatch.setitem(each.__kwdefaults__, "initial_backoff", 1)  # Flower's own, and to be put back
    pace.hurry()
    tries = list[str]()

    def pull(name: str) -> bytes:
        tries.append(name)
        if len(tries) < 2:
            raise flower.ObjectUnavailableError(name)
        return b"here"

    waited = list[float]()
    event = SimpleNamespace(is_set=lambda: False, set=lambda: None, wait=waited.append)
    monkeypatch.setattr(flower, "threading", SimpleNamespace(Lock=threading.Lock, Event=lambda: event))
    assert flower.pull_objects(["a"], pull) == {"a": b"here"}
    assert len(waited) == 1 and waited[0] <= 1.2 * SHORTEST


def test_another_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    commands.check_version()
    monkeypatch.setattr(commands, "version", lambda name: "1.42.0")
    with pytest.raises(BadInput, match=r"needs Flower 1\.41, found 1\.42\.0"):
        commands.check_version()


@pytest.mark.slow
def test_a_silo_that_waits_and_whoever_asks_for_a_status_have_not_imported_what_training_needs() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, coterie.deploy.flower.superexec, coterie.deploy.flower.supernode, "
            "coterie.deploy.flower.monitoring, coterie.commands.federation_view; "
            "print(*{'torch', 'pandas', 'scipy'} & set(sys.modules))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


def test_after_a_rest_the_program_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now, anew = [0.0], list[list[str]]()
    monkeypatch.setattr(superexec, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(superexec, "silo_app", lambda: None)
    monkeypatch.setattr(superexec.os, "fork", lambda: 1)
    monkeypatch.setattr(superexec.os, "execv", lambda program, arguments: anew.append([program, *arguments]))
    executor = superexec.Forking()
    now[0] = 10 * superexec.REST
    executor.reconcile()  # nothing was imported yet
    executor.launch(SimpleNamespace(task_type=superexec.TaskType.CLIENT_APP))  # type: ignore[arg-type]
    now[0] += superexec.REST - 1
    executor.reconcile()
    assert anew == []
    now[0] += 2
    executor.reconcile()
    assert anew == [[sys.executable, sys.executable, *sys.argv]]
