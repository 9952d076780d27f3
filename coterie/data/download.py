"""One file over HTTP: resumed where it broke off, checked against its publisher's checksum, put in place whole."""

import http.client
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.data.sources import File, matches

TRIES = 5  # of each address
WAIT = 1.0  # seconds before the second try, doubled before each one after it
LONGEST = 30.0  # seconds between two tries
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16
PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers of a server that may soon answer otherwise

Watch = Callable[[int, int | None], None]  # bytes so far, bytes in all where that is known


class Failed(Exception):
    """No address gave the file; its text is why."""


class _Again(Exception):
    """Worth another try."""


class _Elsewhere(Exception):
    """Not to be had at this address."""


def download(file: File, target: Path, watch: Watch, pause: Callable[[float], Any] = time.sleep) -> None:
    """Fetch a file to `target`, which appears only when it is complete and is what was published."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    reasons = []
    for url in file.urls:
        wait, spoilt = WAIT, 0
        for attempt in range(TRIES):
            if attempt:
                pause(wait)
                wait = min(2 * wait, LONGEST)
            try:
                _continue(url, part, watch)
                if not matches(part, file.checksum):
                    part.unlink()
                    spoilt += 1
                    # Once may be the network's fault; twice, and something else is published there.
                    raise (_Again if spoilt == 1 else _Elsewhere)("its checksum is not the published one")
                part.replace(target)
                return
            except _Again as error:
                reason = str(error)
            except _Elsewhere as error:
                reason = str(error)
                break
        reasons.append(f"{url}: {reason}")
    raise Failed("; ".join(reasons))


def _continue(url: str, part: Path, watch: Watch) -> None:
    """Add to `part` until it is whole."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "coterie", "Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as reply:
            have = have if reply.status == 206 else 0  # a server that knows no ranges sends all of it
            length = reply.headers.get("Content-Length")
            total = have + int(length) if length and length.isdigit() else None
            _store(reply, part, have, total, watch)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # all of it is here, or more than there is
            if _whole_size(error.headers) != have:
                part.unlink()
                raise _Again("the server has less than was fetched before") from None
        elif error.code in PASSING:
            raise _Again(f"the server answered {error.code} {error.reason}") from None
        else:
            raise _Elsewhere(f"the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, socket.gaierror):
            raise _Elsewhere("its name is not known here (no network?)") from None
        raise _Again(str(getattr(error.reason, "strerror", None) or error.reason)) from None
    except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise _Again(f"the connection broke ({error or type(error).__name__})") from None


def _store(reply: Any, part: Path, have: int, total: int | None, watch: Watch) -> None:
    with part.open("ab" if have else "wb") as out:
        watch(have, total)
        while piece := reply.read1(CHUNK):
            out.write(piece)
            have += len(piece)
            watch(have, total)
        out.flush()
        os.fsync(out.fileno())
    if total is not None and have < total:
        raise _Again(f"the connection broke after {have} of {total} bytes")


def _whole_size(headers: Any) -> int | None:
    """Of a Content-Range."""
    found = re.fullmatch(r"bytes .*/(\d+)", headers.get("Content-Range", "").strip())
    return int(found[1]) if found else None
