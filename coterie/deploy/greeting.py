"""A silo's first look at the coordinator: is it there, and is it who it claims to be?"""

import base64
import re
import socket
import ssl
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from coterie.errors import BadInput, plain

AHEAD, BEHIND = 5, 300  # seconds by which Flower lets a silo's clock be wrong
REMARKED = 2  # seconds by which it may be wrong without a remark
LONGEST_HEAD = 4096  # bytes of an HTTP answer that are read
STRANGER = "its certificate is not by this federation's CA; is ca.crt the one that came with this folder?"
MISTAKES = {  # OpenSSL's numbers
    **dict.fromkeys((7, 18, 19, 20), STRANGER),
    10: "its certificate has expired; the coordinator renews it with `coterie federation renew`",
    62: "its certificate is for another host; is the host in settings.json right?",
    64: "its certificate is for another address; is the host in settings.json right?",
}


def greet(host: str, port: int, ca: Path | None, say: Callable[[str], None], proxy: str = "") -> None:
    """Wait until the coordinator can be reached, and refuse one that cannot prove who it is; `ca` None: none can."""
    printed = False
    context = None if ca is None else _trusting(ca)
    while True:
        try:
            with connected(host, port, proxy) as raw:
                if context is not None:
                    with context.wrap_socket(raw, server_hostname=host) as door:
                        if remark := _checked_clock(door, host):
                            say(remark)
                return
        except ssl.SSLCertVerificationError as error:
            why = MISTAKES.get(error.verify_code, error.verify_message)
            raise BadInput(f"the coordinator at {host}:{port} cannot be trusted: {why}") from None
        except (OSError, ssl.SSLError) as error:
            if not printed:
                say(f"{host}:{port} cannot be reached ({error}); trying again until it can")
            printed = True
            time.sleep(3)


def connected(host: str, port: int, proxy: str = "") -> socket.socket:
    """A connection to the coordinator, through a proxy where one is given."""
    if not proxy:
        return socket.create_connection((host, port), 10)
    by = urlsplit(proxy)
    raw = socket.create_connection((by.hostname or "", by.port or 80), 10)
    try:
        secret = f"{unquote(by.username or '')}:{unquote(by.password or '')}".encode()
        own = f"Proxy-Authorization: Basic {base64.b64encode(secret).decode()}\r\n" if by.username else ""
        raw.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{own}\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head and len(head) < LONGEST_HEAD and (more := raw.recv(1)):  # no byte of what follows
            head += more
        first = head.partition(b"\r\n")[0].decode(errors="replace")
        if not re.match(r"HTTP/1\.[01] 200\b", first):
            raise OSError(f"the proxy {by.hostname} answers: {plain(first, 100) or 'nothing'}")
    except BaseException:
        raw.close()
        raise
    return raw


def _checked_clock(door: socket.socket, host: str) -> str:
    """Refuse a clock by which the coordinator would refuse every signature; a remark on one that is nearly so wrong."""
    before = time.time()
    try:
        door.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        theirs = _dated(door.recv(LONGEST_HEAD))
    except OSError:
        return ""
    if theirs is None:
        return ""
    ahead, behind = before - theirs - 1, theirs - time.time()  # at least: theirs is in whole seconds
    seconds, side = (ahead, "ahead of") if ahead > behind else (behind, "behind")
    if ahead > AHEAD or behind > BEHIND:
        raise BadInput(
            f"this machine's clock is {seconds:.0f} s {side} the coordinator's, which refuses what is signed by it; "
            "set both clocks by NTP, then start again"
        )
    if seconds < REMARKED:
        return ""
    limits = f"{AHEAD} s ahead or {BEHIND} s behind are refused"
    return f"this machine's clock is {seconds:.0f} s {side} the coordinator's; {limits}: set both clocks by NTP"


def _dated(head: bytes) -> float | None:
    """The time in an HTTP answer, in seconds; None where it has none."""
    found = re.search(rb"(?im)^date: *([^\r\n]{1,60})", head)
    try:
        return parsedate_to_datetime(found[1].decode("ascii")).timestamp() if found else None
    except ValueError:
        return None


def _trusting(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"{ca}: not a certificate ({error}); take it from the folder the coordinator sent") from None
