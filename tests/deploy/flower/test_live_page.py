"""The live page of a real federation: its silos, its newest run, and nothing that a simulation's page has not got."""

import http.client
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from loop import Loop, settle
from test_drive import TABLE, Breaking, Broken, federated

pytest.importorskip("cryptography")
from coterie import toml
from coterie.commands.report import live_page
from coterie.deploy import parties
from coterie.deploy.flower import commands
from coterie.deploy.home import write_node
from coterie.errors import BadInput

METHODS = {"fedavg": {}, "fedamp": {}}


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    """Two silos, north online, south gone for two minutes, and one whose name is markup that was never there."""
    folder = tmp_path / "fed"
    parties.new_federation(folder, ["north", "south"], "127.0.0.1", 9443, None)
    (folder / "coordinator" / "members" / "<i>east.pub").touch()
    database = folder / "coordinator" / commands.DATABASE
    database.parent.mkdir()
    with sqlite3.connect(database) as opened:
        opened.execute("CREATE TABLE node (node_id INTEGER, status TEXT, online_until REAL, heartbeat_interval REAL)")
        seen = [(1, "online", time.time() + 50, 30), (2, "online", time.time() - 120, 30)]
        opened.executemany("INSERT INTO node VALUES (?, ?, ?, ?)", seen)
    for name, number in {"north": 1, "south": 2}.items():
        write_node(folder / "coordinator", name, number)
    return folder


@contextmanager
def asked(fed: Path, path: str) -> Iterator[str]:
    with live_page(fed) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            assert server.server_address[0] == "127.0.0.1"
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            connection.request("GET", path)
            yield connection.getresponse().read().decode()
        finally:
            server.shutdown()
            thread.join()


def state(fed: Path, known: str = "") -> dict:
    with asked(fed, f"/state?known={known}") as text:
        return json.loads(text)


def run(fed: Path, tmp_path: Path, answers: int) -> Path:
    """A run that goes on, after so many exchanges."""
    folder = fed / "coordinator" / "runs" / "three-1"
    folder.mkdir(parents=True)
    table = TABLE | {"methods": METHODS}
    (folder / "asked.toml").write_text(toml.dumps(table))
    (folder / "asked.json").write_text(json.dumps({"methods": None, "tune": True, "command": "coterie federation run"}))
    loop = Loop(settle(tmp_path / "silos"))
    with pytest.raises(Broken):
        federated(folder, Breaking(loop, answers), table).run("")
    return folder


def test_before_any_run_the_silos_are_shown(fed: Path) -> None:
    found = state(fed)
    assert found["status"] == "No run has been asked for yet." and not found["scores"]
    north, south = found["silos"].index("north"), found["silos"].index("south")
    rows = found["silos"][north:south], found["silos"][south:]
    assert "online" in rows[0] and "offline" in rows[1] and "2 min ago" in rows[1]
    assert "1 of 3 are online" in found["silos"]
    assert "&lt;i&gt;east" in found["silos"] and "<i>" not in found["silos"]
    with asked(fed, "/") as page:
        assert "id='silos'" in page and "<h1>fed</h1>" in page


def test_another_account_of_the_machine_is_shown_nothing(fed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.deploy.flower.same_account.CONNECTIONS", fed)  # there, whatever the system
    monkeypatch.setattr("coterie.deploy.flower.same_account.account", lambda client, server: -1)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)), asked(fed, "/"):
        pass


def test_a_run_that_goes_on_is_shown_with_rounds_scores_bytes_and_who_replied(fed: Path, tmp_path: Path) -> None:
    folder = run(fed, tmp_path, 8)
    news = json.loads((folder / "progress.json").read_text())
    silos = {"north": "", "south": "its upload was rejected"}
    news |= {"rejected": 2, "rejected_by_silo": {"south": 2}, "silos": silos, "waiting": []}
    (folder / "progress.json").write_text(json.dumps(news))
    found = state(fed)
    assert found["status"].startswith(f"three-1: {news['state']}, fedavg, seed 1, round {news['round']} of 3")
    assert " up, " in found["status"] and "2 uploads rejected" in found["status"]
    assert "fedavg" in found["scores"] and found["figures"]["curves"]["data"] and "/ 3" in found["progress"]
    assert "BMTA" not in found["scores"]  # whose round test data pick
    assert "replied" in found["silos"] and "missing: its upload was rejected; 2 uploads rejected" in found["silos"]
    again = state(fed, found["version"])
    assert set(again) == {"version", "silos"}  # how long ago a silo was heard of changes by itself
    with asked(fed, "/report") as report:
        assert "This run has not finished" in report


def test_of_a_run_that_failed_the_page_has_the_reason(fed: Path, tmp_path: Path) -> None:
    folder = run(fed, tmp_path, 2)
    (folder / "progress.json").write_text(json.dumps({"state": "failed", "reason": "no silo takes part"}))
    assert state(fed)["status"].endswith(" Why: no silo takes part.")


def test_a_folder_that_is_no_federation_is_one_of_a_run(fed: Path, tmp_path: Path) -> None:
    with live_page(fed / "coordinator") as server:
        assert server.folder == fed / "coordinator"
    with pytest.raises(BadInput, match=r"no summary\.json in it"):
        live_page(tmp_path)
