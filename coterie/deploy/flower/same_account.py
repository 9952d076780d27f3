"""Flower's programs serve whoever connects to their port on loopback; with this, only processes of the same account.

The kernel lists every connection with the account of the process that holds its end. Where it does not (no Linux),
a service starts only on a machine without other people's accounts, unless its owner takes the risk.
"""

import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from coterie.errors import BadInput

CONNECTIONS = Path("/proc/net/tcp")
PEOPLE = 500  # accounts from this number on are people's, on macOS
ESTABLISHED = "01"  # others may be listed without their account
PUBLISHED = "/v1/fleet/"  # what silos call, with a key each
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class SameAccount:
    """Refuses requests that come from another account's process, but for those to published paths."""

    def __init__(self, app: App, published: str | None = None) -> None:
        self.app, self.published = app, published

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_published(scope["path"]) or is_own(scope["client"], scope["server"]):
            return await self.app(scope, receive, send)
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": b"only the account that runs this may call it"})

    def _is_published(self, path: str) -> bool:
        return self.published is not None and path.startswith(self.published)


def is_own(client: tuple[str, int] | None, server: tuple[str, int] | None) -> bool:
    """Whether a connection comes from a process of this account, where that can be known."""
    return not CONNECTIONS.exists() or account(client, server) == os.geteuid()


def check_accounts(shared_ok: bool) -> None:
    """Refuse a machine with other people's accounts where nobody can tell whose process connects (macOS)."""
    if CONNECTIONS.exists() or shared_ok:
        return
    import pwd  # which Windows has not

    own = os.geteuid()
    others = [a.pw_name for a in pwd.getpwall() if a.pw_uid >= PEOPLE and a.pw_uid != own and _logs_in(a.pw_shell)]
    if others:
        raise BadInput(
            f"this machine has other accounts ({', '.join(others[:5])}), whose programs could reach Flower's port, "
            "and no /proc/net/tcp by which they are kept out; take a machine of its own, or give --shared-host-ok"
        )


def _logs_in(shell: str) -> bool:
    return not shell.endswith(("nologin", "false"))


def stand_before(served: Any, middleware: Any, **options: Any) -> None:
    """Have the app that a module of Flower's makes answer through this, before all that stood before it so far."""
    create = served.create_app

    def made(*given: Any, **named: Any) -> Any:
        app = create(*given, **named)
        app.add_middleware(middleware, **options)
        return app

    served.create_app = made


def guard(served: Any, published: str | None = None) -> None:
    """Have the app that a module of Flower's makes refuse other accounts."""
    stand_before(served, SameAccount, published=published)


def account(client: tuple[str, int] | None, server: tuple[str, int] | None) -> int | None:
    """The number of the account whose process connects from one address to another; None where there is none."""
    if client is None or server is None:
        return None
    try:
        ends = [_written(*client), _written(*server)]
    except OSError:  # no address of this kind: loopback is
        return None
    for line in CONNECTIONS.read_text("ascii").splitlines()[1:]:
        _, local, remote, state, _, _, _, uid, *_ = line.split()
        if [local, remote, state] == [*ends, ESTABLISHED]:
            return int(uid)
    return None


def _written(host: str, port: int) -> str:
    """As the kernel writes it: the address as a number of this machine, in hexadecimal."""
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
