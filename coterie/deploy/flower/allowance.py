"""How many bytes a silo's node may push: as many as the answers may have that it was asked for.

The coordinator's app grants before it asks; the SuperLink, which is another process, counts what arrives and takes
no more. So a reply a thousand times too long fills neither its memory nor its database.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from coterie.deploy.home import json_table, write_whole

FILE = "state/allowed.json"  # in the coordinator's folder: by node, all bytes granted so far and the last grant's


def grant(path: Path, sizes: Mapping[int, int]) -> None:
    """Let nodes push so many bytes more."""
    table = _read(path)
    for node, size in sizes.items():
        table[str(node)] = [table.get(str(node), [0])[0] + size, size]
    write_whole(path, json.dumps(table).encode())


class Allowance:
    """What nodes have pushed since this process began, against what they were granted."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock, self.pushed = path, Lock(), Counter[int]()
        self.spent = {node: total - last for node, (total, last) in _read(path).items()}  # the last may be on its way

    def takes(self, node: int, size: int) -> bool:
        """Whether a node may push so many bytes more; they count if it may."""
        with self.lock:
            total = _read(self.path).get(str(node), [0])[0] - self.spent.get(str(node), 0)
            if self.pushed[node] + size > total:
                return False
            self.pushed[node] += size
            return True


def limit(handlers: Any, allowance: Allowance, refused: Callable[[Any], Any], say: Callable[[str], None]) -> None:
    """Have Flower's handler of what nodes push take no more than they were granted."""
    push = handlers.push_object

    def limited(request: Any, state: Any) -> Any:
        if allowance.takes(request.node.node_id, len(request.object_content)):
            return push(request=request, state=state)
        say(f"node {request.node.node_id} sends more bytes than it was asked for: refused")
        return refused(False)

    handlers.push_object = limited


def _read(path: Path) -> dict[str, Any]:
    return json_table(path, "remove it") if path.exists() else {}
