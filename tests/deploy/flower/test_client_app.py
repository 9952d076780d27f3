"""What a silo's app answers where it cannot."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from loop import settle

from coterie.deploy.flower import client_app, services
from coterie.deploy.flower.grid import answer_of, enclosed
from coterie.deploy.home import SILO, SOURCE
from coterie.deploy.messages import Answer, Request


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_silo_whose_disk_is_full_answers_so(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)
    side = settle(tmp_path)["north"]
    monkeypatch.setenv(SILO, str(side.folder))
    (side.folder / SOURCE).parent.mkdir(exist_ok=True)
    (side.folder / SOURCE).write_text('{"path": "data.npz", "device": "cpu"}')
    (side.folder / "settings.json").write_text('{"name": "north", "host": "127.0.0.1", "port": 9443}')

    def fails(*given: object) -> Answer:
        raise OSError(code, "no", str(side.folder))

    monkeypatch.setattr(client_app.SiloSide, "answer", fails)
    monkeypatch.setattr(client_app.SiloSide, "note", fails)  # nor can it be written down
    content = enclosed("request", {"head": Request("declare", "north", "run", 0).head()}, b"")
    asked = Message(content=content, message_type="query", dst_node_id=2)
    asked.metadata.__dict__["_message_id"] = "a"
    found = answer_of(client_app.handle(asked, Context(1, 2, {}, RecordDict(), {})))
    assert isinstance(found, Answer) and str(tmp_path) not in found.refusal
    assert found.refusal == (
        "its disk is full" if code == errno.ENOSPC else "the silo failed with OSError; see its log"
    )


def test_its_owner_reads_once_that_the_disk_is_full_and_once_that_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed, room = list[str](), True
    for free in (10, 20, 10**9, 10**9):
        monkeypatch.setattr(services.shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        room = services._has_room(tmp_path, room, printed.append)
    assert printed == [f"its disk is full: nothing is answered until {tmp_path} has room", "its disk has room again"]
