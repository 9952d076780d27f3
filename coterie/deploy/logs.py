"""What services write down: lines with their time, in files that are moved on before they grow large."""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal, TextIO, get_args

LARGEST, KEPT = 10_000_000, 5  # bytes of a log, and how many older ones are kept beside it: .1 is the newest
SERVICE = "logs/service.log"  # in a party's folder
Form = Literal["plain", "json"]
FORMS: tuple[str, ...] = get_args(Form)
Say = Callable[[str], None]


class Stamped(logging.Formatter):
    """The time with its zone, the party, the line: as text, or as one JSON object."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        if self.form == "json":
            return json.dumps({"time": time, "party": record.name, "message": record.getMessage()})
        return f"{time} {record.name}: {record.getMessage()}"


@contextmanager
def service_log(folder: Path, party: str, form: Form, shown: TextIO) -> Iterator[Say]:
    """How a party's service reports: each line to a screen, a journal or a container's log, and to its own file."""
    path = folder / SERVICE
    path.parent.mkdir(parents=True, exist_ok=True)
    screen = logging.StreamHandler(shown)
    kept = RotatingFileHandler(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8")
    kept.setFormatter(Stamped(form))
    if form == "json":  # a plain line on a terminal or in a journal, which has its own time, stays as it is
        screen.setFormatter(Stamped(form))
    logger = logging.Logger(party, logging.INFO)
    for handler in (screen, kept):
        logger.addHandler(handler)
    try:
        yield logger.info
    finally:
        kept.close()


def rotate(log: Path) -> bool:
    """Move on a log that another program has open for appending, once it is large; whether it was."""
    if not log.exists() or log.stat().st_size <= LARGEST:
        return False
    for number in range(KEPT - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)  # its program goes on appending here
    return True


def append(path: Path, line: str) -> None:
    """Append a line with its time to a file that several processes write to, one line each."""
    handler = RotatingFileHandler(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8")
    try:
        stamped = f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}"
        handler.emit(logging.LogRecord("", logging.INFO, "", 0, stamped, None, None))
    finally:
        handler.close()


class Follower:
    """Follows such a file from its end on, also when it is moved on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file, self.seen = _identity(path), path.stat().st_size if path.exists() else 0

    def new(self) -> list[str]:
        """The lines since the last look."""
        names = [self.path, *(self.path.with_name(f"{self.path.name}.{number}") for number in range(1, KEPT + 1))]
        files = [path for path in names if path.exists()]
        known = [_identity(path) for path in files]
        newer = known.index(self.file) + 1 if self.file in known else len(files)  # those since, and itself
        found = b""
        for path, file in reversed([*zip(files, known, strict=True)][:newer]):
            with path.open("rb") as opened:
                opened.seek(self.seen if file == self.file else 0)
                found += opened.read()
                self.file, self.seen = file, opened.tell()
        return found.decode(errors="replace").splitlines()


def _identity(path: Path) -> int | None:
    """Which file it is, under whatever name."""
    return path.stat().st_ino if path.exists() else None
