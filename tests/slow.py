"""Which tests `make test` leaves to `make test-all`: those that take half a second or so, by the list in slow.txt.

    make times    measures all tests and writes the list anew

What counts is the time of processors, a test's own and that of the processes that it waits for: it is the same on a
busy machine. A test with parameters is one entry, by the mean over them. Tests marked `slow` by hand start processes or
a browser, and the fuzz tests take fewer inputs instead. An entry that was not measured stays as it is.
"""

import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("slow.txt")
LIMIT = 0.4  # seconds
TIMES = "TEST_TIMES"  # in the environment: the file to which each test adds a line


def mark(items: list[pytest.Item], root: Path) -> None:
    """Mark what the list names."""
    listed = set(LIST.read_text("utf-8").split())
    for item in items:
        if _function(f"{item.path.relative_to(root / 'tests')}::{item.name}") in listed:
            item.add_marker(pytest.mark.slow)


def seconds() -> float:
    """What this process has taken of its processors so far, with the processes that it has waited for."""
    return sum(os.times()[:4])


def note(node: str, took: float) -> None:
    """Add what a test took to the file that the environment names, if it names one."""
    if TIMES in os.environ:
        with Path(os.environ[TIMES]).open("a", encoding="utf-8") as file:  # a line at once, whichever process writes it
            file.write(f"{took:.3f} {node}\n")


def _function(node: str) -> str:
    return node.removeprefix("tests/").split("[")[0]


def main(times: Path) -> None:
    """Write the list, from what the tests have noted, and print what `make test` will take."""
    taken = dict[str, float]()
    for line in times.read_text("utf-8").splitlines():
        took, _, node = line.partition(" ")
        taken[node] = float(took)
    by_function: dict[str, list[float]] = defaultdict(list)
    for node, took in taken.items():
        by_function[_function(node)].append(took)
    before = set(LIST.read_text("utf-8").split())
    measured = {each for each, all_of in by_function.items() if sum(all_of) / len(all_of) >= LIMIT}
    slow = {each for each in measured | (before - by_function.keys()) if not each.startswith("fuzz/")}
    LIST.write_text("".join(f"{each}\n" for each in sorted(slow)), "utf-8")
    left, whole = sum(took for node, took in taken.items() if _function(node) not in slow), sum(taken.values())
    sys.stdout.write(f"{len(slow)} are slow; the others that were measured take {left:.0f} s of {whole:.0f}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
