"""Which tests `make test` leaves to `make test-all`: those that take half a second or so, by the list in slow.txt.

    make times    measures all tests and writes the list anew

A test with parameters is one entry, by the mean over them. Tests marked `slow` by hand start processes or a browser,
and the fuzz tests take fewer inputs instead.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("slow.txt")
LIMIT = 0.4  # seconds


def mark(items: list[pytest.Item], root: Path) -> None:
    """Mark what the list names."""
    listed = set(LIST.read_text("utf-8").split())
    for item in items:
        if _function(f"{item.path.relative_to(root / 'tests')}::{item.name}") in listed:
            item.add_marker(pytest.mark.slow)


def _function(node: str) -> str:
    return node.removeprefix("tests/").split("[")[0]


def main() -> None:
    """Write the list, from what `pytest --durations=0` printed."""
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for took, node in re.findall(r"^([\d.]+)s (?:call|setup|teardown) +tests/(\S.*)$", sys.stdin.read(), re.M):
        seconds[_function(node)][node] += float(took)
    means = {function: sum(each.values()) / len(each) for function, each in seconds.items()}
    slow = sorted(each for each, mean in means.items() if mean >= LIMIT and not each.startswith("fuzz/"))
    LIST.write_text("".join(f"{each}\n" for each in slow), "utf-8")
    sys.stdout.write(f"{len(slow)} of {len(means)} are slow\n")


if __name__ == "__main__":
    main()
