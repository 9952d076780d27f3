"""Which state of the code the long tests with real processes have passed on: all that silos and coordinators import.

python tests/deploy/flower/verified.py           says whether it is this one (exit code 0) or another (1)
python tests/deploy/flower/verified.py --write   notes that it is this one
python tests/deploy/flower/verified.py --list    lists the files
"""

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[3]
NOTE = Path(__file__).with_name(".verified")
ENTRANCES = (
    "coterie.deploy.",
    "coterie.commands.federation",
    "coterie.commands.silo",
    "coterie.methods.",  # found by name,
    "coterie.models.",  # as these are
    "coterie.personal.file",  # with which the tests look at what a silo keeps
)
# The page is made from the files of a run that has ended; tests/deploy/test_drive.py makes it without Flower.
APART = "coterie.report"
BESIDE = (
    "coterie/__main__.py",
    "coterie/commands/main.py",  # of whose commands silos and coordinators run those above alone
    "tests/deploy/**/*.py",
    "tests/toy_package/*.*",
    "tests/plugin.py",
    "tests/own_silos.py",
    "constraints.txt",
)


def files() -> list[Path]:
    """What these tests run, in the order of their names."""
    modules = {ROOT / name.replace(".", "/") for name in _imported()}
    code = {path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in modules}
    return sorted(code.union(*(ROOT.glob(pattern) for pattern in BESIDE)))


def digest(paths: Iterable[Path], root: Path = ROOT) -> str:
    """Of files, by name and content."""
    total = hashlib.sha256()
    for path in paths:
        name = path.relative_to(root).as_posix()
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _imported() -> set[str]:
    """The entrances, and all that importing them imports."""
    graph = grimp.build_graph("coterie", cache_dir=None, exclude_type_checking_imports=True)
    open_, found = {name for name in graph.modules if name.startswith(ENTRANCES)}, set[str]()
    while open_:
        name = open_.pop()
        if name not in found and not name.startswith(APART):
            found.add(name)
            package = {name.rpartition(".")[0]} - {""}  # which is imported before what is in it
            open_ |= graph.find_modules_directly_imported_by(name) | package
    return found


if __name__ == "__main__":
    if "--list" in sys.argv[1:]:
        sys.stdout.writelines(f"{path.relative_to(ROOT)}\n" for path in files())
    elif "--write" in sys.argv[1:]:
        NOTE.write_text(digest(files()) + "\n", "utf-8")
    else:
        sys.exit(not (NOTE.exists() and NOTE.read_text("utf-8").strip() == digest(files())))
