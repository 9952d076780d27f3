"""What Flower serves on loopback without asking who calls is served to the own account alone."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.deploy.flower import same_account
from coterie.deploy.flower.same_account import PUBLISHED, SameAccount, account, check_accounts, guard
from coterie.errors import BadInput

pytestmark = pytest.mark.skipif(not same_account.CONNECTIONS.exists(), reason="no /proc/net/tcp here")


@pytest.fixture
def ends() -> Iterator[tuple[Any, Any]]:
    """The addresses of a client and a server that are connected."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            yield client.getsockname(), server.getsockname()


def status(client: Any, server: Any, path: str, published: str | None = None) -> int:
    """How a request is answered: 200 by what is guarded."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "client": client, "server": server}
    asyncio.run(SameAccount(app, published)(scope, None, send))  # type: ignore[arg-type]
    return int(sent[0]["status"])


def test_a_call_of_the_own_account_is_answered(ends: tuple[Any, Any]) -> None:
    assert account(*ends) == os.geteuid()
    assert status(*ends, "/v1/runtime/acquire-task") == 200


def test_a_call_of_another_account_is_refused(
    ends: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = str(os.geteuid() + 1)
    lines = [line.split() for line in same_account.CONNECTIONS.read_text().splitlines()]
    changed = [" ".join([*line[:7], other, *line[8:]]) for line in lines[1:]]
    (tmp_path / "tcp").write_text("\n".join([" ".join(lines[0]), *changed]))
    monkeypatch.setattr(same_account, "CONNECTIONS", tmp_path / "tcp")
    assert account(*ends) == int(other)
    assert status(*ends, "/v1/runtime/acquire-task") == 403
    assert status(*ends, "/v1/control/start-run", PUBLISHED) == 403
    assert status(*ends, "/v1/fleet/pull-messages", PUBLISHED) == 200  # which asks for a registered key


@pytest.mark.skipif(not hasattr(os, "fork") or os.geteuid() != 0, reason="only root can be another account")
def test_the_kernel_tells_whose_process_calls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            with socket.create_connection(listener.getsockname()) as client:
                client.recv(1)
            os._exit(0)
        server, address = listener.accept()
        with server:
            found = status(address, server.getsockname(), "/v1/runtime/acquire-task")
            assert (account(address, server.getsockname()), found) == (65534, 403)
        os.waitpid(child, 0)


@pytest.mark.parametrize("client", [None, ("127.0.0.1", 0), ("10.0.0.1", 4242), ("::1", 4242), ("nobody", 1)])
def test_a_caller_that_the_kernel_does_not_know_is_refused(client: Any, ends: tuple[Any, Any]) -> None:
    assert status(client, ends[1], "/v1/runtime/acquire-task") == 403


def test_the_app_that_flower_makes_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from flwr.supernode import main as served
    from starlette.testclient import TestClient

    monkeypatch.setattr(served, "create_app", served.create_app)  # as it was, afterwards
    assert TestClient(served.create_app()).get("/openapi.json").status_code == 200
    guard(served)
    assert TestClient(served.create_app()).get("/openapi.json").status_code == 403


@pytest.mark.parametrize(
    ("accounts", "shared_ok", "refused"),
    [
        ([("alice", 501, "/bin/zsh"), ("bob", 502, "/bin/zsh")], False, True),
        ([("alice", 501, "/bin/zsh"), ("bob", 502, "/bin/zsh")], True, False),
        ([("alice", 501, "/bin/zsh"), ("_www", 70, "/bin/sh"), ("nobody", 65534, "/usr/bin/false")], False, False),
    ],
)
def test_without_a_list_of_connections_a_service_starts_only_where_nobody_else_has_an_account(
    accounts: list[tuple[str, int, str]],
    shared_ok: bool,
    refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = [SimpleNamespace(pw_name=name, pw_uid=number, pw_shell=shell) for name, number, shell in accounts]
    monkeypatch.setattr("pwd.getpwall", lambda: known)
    monkeypatch.setattr(same_account.os, "geteuid", lambda: 501)
    check_accounts(shared_ok)  # with a list, whoever else is there
    monkeypatch.setattr(same_account, "CONNECTIONS", tmp_path / "tcp")
    if not refused:
        return check_accounts(shared_ok)
    with pytest.raises(BadInput, match=r"other accounts \(bob\).*--shared-host-ok"):
        check_accounts(shared_ok)
