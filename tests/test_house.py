"""The rooms: CONTRIBUTING draws the contract that lint-imports checks, and tests lie in rooms of the same names."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BESIDE = {"fuzz", "toy_package"}  # tests of no one room
# Of a room, tests that are of several of its modules at once, or of what they do together.
SUBJECTS = {
    "commands": "plugins",
    "deploy": "door incumbents sums tables trust",
    "deploy/flower": "real_core real_faults real_halves real_keys real_members real_parts real_plugin real_secured "
    "real_tables real_wedged",
    "engine": "awkward examined frozen recalled rogue round_samples widths",
    "engine/kernels": "cuda interpreted",
    "methods": "adapters conformance levels soak",
    "methods/wrappers": "pages poison wrappers",
    "models": "builtin_models",
    "personal": "tokenizer",
    "report": "browser by readers",
    "run": "kill stacked start subgroups threshold",
    "studies": "published",
}
OF_THE_REPOSITORY = "discreet docs house package supply_chain verified walk"  # as a whole


def test_the_drawing_in_contributing_is_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["coterie"])
    drawing = re.search(r"```\n(commands .*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL)
    assert drawing is not None
    known = {room for layer in layers for room in layer.split(" | ")}
    drawn = [[word for word in line.split() if word in known] for line in drawing[1].splitlines()]
    rooms = [line[: len(layer.split(" | "))] for line, layer in zip(drawn, layers[1:], strict=True)]
    assert rooms == [layer.split(" | ") for layer in layers[1:]]  # __main__ is no room


def test_tests_lie_in_the_rooms_of_what_they_test() -> None:
    rooms = {path.parent.relative_to(ROOT / "coterie") for path in (ROOT / "coterie").rglob("*.py")}
    tested = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    assert {room for room in tested if room.parts[:1] not in {(name,) for name in BESIDE}} <= rooms


def test_a_test_file_has_the_name_of_what_it_tests() -> None:
    """`test_rows.py` is of `rows.py`, and so is `test_rows_on_a_gpu.py`: names of files are unique."""
    named, subjects = list[str](), list[str]()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        room, name = path.parent.relative_to(ROOT / "tests"), path.stem.removeprefix("test_")
        if room.parts[:1] in {(each,) for each in BESIDE}:
            continue
        known = [ROOT / "coterie" / room, *([ROOT / "bench"] if room == Path() else [])]
        modules = {path.stem for folder in known for path in folder.iterdir()}
        exact = any(name == each or name.startswith(f"{each}_") for each in modules)
        (named if exact else subjects).append(f"{room.as_posix()}/{name}".removeprefix("./"))
    listed = {f"{room}/{name}" for room, names in SUBJECTS.items() for name in names.split()}
    assert {*subjects} == listed | {*OF_THE_REPOSITORY.split()}  # rename the test, or name its subject here
    assert len(named) > len(subjects)


@pytest.mark.parametrize("module", ["monitoring", "services", "supernode", "superlink"])
def test_programs_that_mostly_wait_do_not_import_pytorch(module: str) -> None:
    pytest.importorskip("cryptography")
    code = f"import sys, coterie.deploy.flower.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
