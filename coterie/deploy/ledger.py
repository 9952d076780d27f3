"""What left this silo, field by field: an append-only file whose every line carries the hash of the one before."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import torch

from coterie.deploy.home import set_aside, write_whole
from coterie.deploy.messages import Request
from coterie.errors import BadInput
from coterie.wire import Up

FILE = "ledger.jsonl"
HEAD = "ledger.head"  # how many lines and bytes there are and the last line's hash: lines cut from the end are missed
START = "0" * 64
TAIL = 64 << 10  # bytes of the newest lines, which are read for a new one; `coterie silo ledger` reads them all
KINDS = {  # what an entry holds
    **dict.fromkeys(("time", "run", "kind", "field", "sha256", "before", "hash"), str),
    **dict.fromkeys(("round", "attempt", "bytes"), int),
    "shape": list,
}

BY = {"operator": str}  # of a run that an operator has signed


class Ledger:
    """The ledger in a silo's folder."""

    def __init__(self, folder: Path) -> None:
        self.path, self.head = folder / FILE, folder / HEAD

    def record(self, request: Request, up: Up, operator: str = "") -> bool:
        """Write down every field of an upload, once for each request that it answers; whether half a line was cut."""
        self.path.touch()
        with self.path.open("r+b") as file:
            start, before = self._newest(file)
            file.seek(start)
            found = file.read()
            whole = _whole(found)
            entries = list(_entries(whole, self.path))
            if not start:
                self._check_end(entries)
            file.truncate(start + len(whole))
            file.seek(start + len(whole))
            about = {"run": request.run, "kind": request.kind, "round": request.round, "attempt": request.attempt}
            by = {"operator": operator} if operator else {}
            known = {(e["field"], e["sha256"]) for e in entries if all(e[key] == about[key] for key in about)}
            last = entries[-1]["hash"] if entries else START
            for name, tensor in up.tensors().items():
                # Copied, because a tensor of one element counts as contiguous with any stride.
                plain = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
                digest = hashlib.sha256(plain.view(torch.uint8).numpy().data).hexdigest()
                if (name, digest) in known:
                    continue
                entry: dict[str, Any] = {
                    "time": datetime.now(UTC).isoformat(timespec="seconds"),
                    **about,
                    **by,
                    "field": name,
                    "shape": list(tensor.shape),
                    "bytes": tensor.nbytes,
                    "sha256": digest,
                    "before": last,
                }
                last = entry["hash"] = _hash(entry)
                file.write(json.dumps(entry).encode() + b"\n")
                entries.append(entry)
            file.flush()
            os.fsync(file.fileno())
            # After the lines: whoever is killed in between has a line more than the head knows, never one less.
            head = {"entries": before + len(entries), "hash": last, "size": file.tell()}
            write_whole(self.head, json.dumps(head).encode())
            return len(whole) < len(found)

    def _newest(self, file: BinaryIO) -> tuple[int, int]:
        """Where the newest lines begin, and how many come before; 0 where the head has another last line, or none."""
        with suppress(OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            head = json.loads(self.head.read_text("utf-8"))
            start = file.seek(max(0, head["size"] - TAIL))
            first, *lines = file.read(head["size"] - start).splitlines(keepends=True)
            last = json.loads(lines[-1])
            if start and lines[-1].endswith(b"\n") and last.pop("hash") == _hash(last) == head["hash"]:
                return start + len(first), head["entries"] - len(lines)
        return 0, 0

    def entries(self) -> list[dict[str, Any]]:
        """All entries, verified: a line that was changed, moved or removed breaks the chain and is named."""
        entries = self._chained()
        self._check_end(entries)
        return entries

    def mend(self) -> list[str]:
        """Make the ledger usable again, and what was done; what cannot be mended is set aside and never deleted."""
        found = self.path.read_bytes() if self.path.exists() else b""
        done = []
        if len(_whole(found)) < len(found):
            os.truncate(self.path, len(_whole(found)))
            done.append(f"{self.path.name}: half a line was cut from its end; what it was to record never left")
        try:
            self.entries()
        except BadInput as error:
            with suppress(BadInput):  # of a chain that is broken
                if self._lost_head() and (entries := self._chained()):
                    write_whole(self.head, json.dumps({"entries": len(entries), "hash": entries[-1]["hash"]}).encode())
                    known = f"written anew from {len(entries)} lines, whose chain is whole"
                    return [*done, f"{self.head.name}: {known}; lines may be missing at its end"]
            names = [set_aside(path).name for path in (self.path, self.head) if path.exists()]
            done.append(f"{error}; set aside as {', '.join(names)}, and a new chain begins")
        return done

    def _chained(self) -> list[dict[str, Any]]:
        entries = list(_entries(_whole(self.path.read_bytes() if self.path.exists() else b""), self.path))
        last = START
        for number, entry in enumerate(entries, 1):
            body = {key: value for key, value in entry.items() if key != "hash"}
            if entry["before"] != last or _hash(body) != entry["hash"]:
                raise BadInput(f"{self.path} line {number}: the chain is broken here; the ledger was altered")
            last = entry["hash"]
        return entries

    def _lost_head(self) -> bool:
        """Whether there is no head, or one that cannot be read."""
        try:
            head = json.loads(self.head.read_text("utf-8"))
            return not (isinstance(head["entries"], int) and isinstance(head["hash"], str))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return True

    def _check_end(self, entries: list[dict[str, Any]]) -> None:
        """Find lines that were cut from the end."""
        if not self.head.exists():
            if entries:
                raise BadInput(f"{self.head}: missing, so lines may have been cut from the end of {self.path}")
            return
        try:
            head = json.loads(self.head.read_text("utf-8"))
            count, last = int(head["entries"]), str(head["hash"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadInput(f"{self.head}: damaged, so lines may have been cut from the end of {self.path}") from None
        if count > len(entries):
            cut = count - len(entries)
            raise BadInput(f"{self.path}: {cut} of its {count} lines are cut from the end; the ledger was altered")
        if count > 0 and entries[count - 1]["hash"] != last:
            raise BadInput(f"{self.path} line {count}: not the line that {self.head.name} names; it was altered")


def _whole(content: bytes) -> bytes:
    """Without half a line at the end, as a full disk leaves it: what it was to record never left."""
    return content[: content.rfind(b"\n") + 1]


def _entries(content: bytes, path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        try:
            entry = json.loads(line)
            if {key: type(value) for key, value in entry.items()} not in (KINDS, KINDS | BY):
                raise ValueError
        except (ValueError, AttributeError, RecursionError):
            raise BadInput(f"{path} line {number}: not an entry; the ledger was altered") from None
        yield entry


def _hash(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()
