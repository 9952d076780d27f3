"""The rooms: CONTRIBUTING draws the contract that lint-imports checks, and tests lie in rooms of the same names."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BESIDE = {"fuzz", "toy_package"}  # tests of no one room


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


@pytest.mark.parametrize("module", ["monitoring", "services", "supernode", "superlink"])
def test_programs_that_mostly_wait_do_not_import_pytorch(module: str) -> None:
    pytest.importorskip("cryptography")
    code = f"import sys, coterie.deploy.flower.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
