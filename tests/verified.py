"""Which state of the code the longest tests have passed on: all that they import, in one way or another.

python tests/verified.py flower           says whether it is this one (exit code 0) or another (1)
python tests/verified.py flower --write   notes that it is this one
python tests/verified.py flower --list    lists the files

`flower`: silos and coordinators as real processes. `soak`: methods over 400 rounds, among rogues, in processes that
are lost, and verdicts on thousands of made runs.
"""

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).parents[1]
NOTE = Path(__file__).with_name(".verified")


class Group(NamedTuple):
    """Tests, by what they run."""

    entrances: tuple[str, ...]  # modules by how their names begin
    beside: tuple[str, ...]  # other files


# The page is made from the files of a run that has ended; tests/deploy/test_drive.py makes it without Flower.
APART = "coterie.report"
GROUPS = {
    "flower": Group(
        (
            "coterie.deploy.",
            "coterie.commands.federation",
            "coterie.commands.silo",
            "coterie.methods.",  # found by name,
            "coterie.models.",  # as these are
            "coterie.personal.file",  # with which the tests look at what a silo keeps
        ),
        (
            "coterie/__main__.py",
            "coterie/commands/main.py",  # of whose commands silos and coordinators run those above alone
            "tests/deploy/**/*.py",
            "tests/toy_package/*.*",
            "tests/plugin.py",
            "tests/own_silos.py",
            "constraints.txt",
        ),
    ),
    "soak": Group(
        ("coterie.engine.", "coterie.methods.", "coterie.models.", "coterie.measure.", "coterie.run."),
        (
            "coterie/studies/*.toml",
            "tests/*.py",  # what tests share
            "tests/methods/test_soak.py",
            "tests/engine/*.py",
            "tests/runs/*.py",
            "tests/measure/*.py",
            "constraints.txt",
        ),
    ),
}


def files(group: str) -> list[Path]:
    """What its tests run, in the order of their names."""
    modules = {ROOT / name.replace(".", "/") for name in _imported(GROUPS[group].entrances)}
    code = {path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in modules}
    return sorted(code.union(*(ROOT.glob(pattern) for pattern in GROUPS[group].beside)))


def digest(paths: Iterable[Path], root: Path = ROOT) -> str:
    """Of files, by name and content."""
    total = hashlib.sha256()
    for path in paths:
        name = path.relative_to(root).as_posix()
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _imported(entrances: tuple[str, ...]) -> set[str]:
    """The entrances, and all that importing them imports."""
    graph = grimp.build_graph("coterie", cache_dir=None, exclude_type_checking_imports=True)
    open_, found = {name for name in graph.modules if name.startswith(entrances)}, set[str]()
    while open_:
        name = open_.pop()
        if name not in found and not name.startswith(APART):
            found.add(name)
            package = {name.rpartition(".")[0]} - {""}  # which is imported before what is in it
            open_ |= graph.find_modules_directly_imported_by(name) | package
    return found


def main(group: str, what: str = "") -> None:
    """What the command line asks for."""
    noted = json.loads(NOTE.read_text("utf-8")) if NOTE.exists() else {}
    if what == "--list":
        sys.stdout.writelines(f"{path.relative_to(ROOT)}\n" for path in files(group))
    elif what == "--write":
        NOTE.write_text(json.dumps(noted | {group: digest(files(group))}, indent=1, sort_keys=True) + "\n", "utf-8")
    else:
        sys.exit(noted.get(group) != digest(files(group)))


if __name__ == "__main__":
    main(*sys.argv[1:])
