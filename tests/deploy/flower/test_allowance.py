"""A reply that is a thousand times too long reaches neither the coordinator's memory nor its database."""

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loop import job

from coterie.deploy.flower.allowance import Allowance, grant, limit
from coterie.deploy.flower.commands import shrink
from coterie.deploy.messages import LARGEST_ANSWER
from coterie.deploy.nginx import configuration
from coterie.deploy.remote import largest_upload
from coterie.methods import METHODS


def test_a_node_pushes_no_more_than_the_answers_it_was_asked_for_may_have(tmp_path: Path) -> None:
    path, stored, said = tmp_path / "allowed.json", list[int](), list[str]()

    def push_object(request: Any, state: Any) -> bool:
        stored.append(len(request.object_content))
        return True

    handlers = SimpleNamespace(push_object=push_object)
    limit(handlers, Allowance(path), lambda taken: taken, said.append)

    def push(node: int, size: int) -> bool:
        request = SimpleNamespace(node=SimpleNamespace(node_id=node), object_content=bytes(size))
        return bool(handlers.push_object(request=request, state=None))

    assert not push(1, 1)  # nobody has asked it anything
    grant(path, {1: 100, 2: 100})
    assert push(1, 60) and push(1, 40) and not push(1, 1) and push(2, 100)
    grant(path, {1: 100})
    assert push(1, 100) and not push(2, 1)
    assert sum(stored) == 300 and said == ["node 1 sends more bytes than it was asked for: refused"] * 2 + [
        "node 2 sends more bytes than it was asked for: refused"
    ]


def test_a_superlink_that_is_started_again_takes_what_was_asked_for_last(tmp_path: Path) -> None:
    path = tmp_path / "allowed.json"
    for size in (1000, 500, 20):
        grant(path, {1: size})
    allowance = Allowance(path)
    assert not allowance.takes(1, 21) and allowance.takes(1, 20) and not allowance.takes(1, 1)


@pytest.mark.parametrize("name", METHODS.packaged)
def test_the_limit_of_an_upload_follows_its_fields(name: str) -> None:
    method, model, roster = job(name).built()
    largest = largest_upload(method, method.axes(roster, model))
    assert largest - LARGEST_ANSWER < 128 * 20 * model.width < 400e6


def test_nginx_takes_no_request_larger_than_a_piece_of_a_model() -> None:
    assert "client_max_body_size 16m;" in configuration("127.0.0.1", 9443, 9444, True)


def test_a_database_gives_back_its_room(tmp_path: Path) -> None:
    path = tmp_path / "superlink.db"
    shrink(path)
    assert not path.exists()
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("CREATE TABLE object (content BLOB)")
        opened.execute("INSERT INTO object VALUES (zeroblob(1000000))")
        opened.execute("DELETE FROM object")
        opened.commit()
    assert path.stat().st_size > 1_000_000
    shrink(path)
    assert path.stat().st_size < 100_000
