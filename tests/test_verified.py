"""Which change makes the longest tests run again."""

import ast
from pathlib import Path

import verified

FLOWER = Path(__file__).parent / "deploy" / "flower"


def test_what_silos_and_coordinators_import_is_covered_and_the_page_is_not() -> None:
    covered = {path.relative_to(verified.ROOT).as_posix() for path in verified.files("flower")}
    for path in ("deploy/silo", "engine/rounds", "methods/fedavg", "data/own/tables", "studies/study", "codec"):
        assert f"coterie/{path}.py" in covered, path
    assert {"tests/plugin.py", "tests/deploy/loop.py", "tests/deploy/flower/real.py", "constraints.txt"} <= covered
    assert not any(path.startswith("coterie/report/") for path in covered)


def test_all_that_those_tests_import_themselves_is_covered() -> None:
    covered = set(verified.files("flower"))
    for test in (*FLOWER.glob("test_real_*.py"), FLOWER / "real.py"):
        for node in ast.walk(ast.parse(test.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coterie"):
                path = verified.ROOT / str(node.module).replace(".", "/")
                assert path.with_suffix(".py") in covered or path / "__init__.py" in covered, (test.name, node.module)


def test_what_methods_and_verdicts_are_made_of_is_covered_and_what_is_deployed_is_not() -> None:
    covered = {path.relative_to(verified.ROOT).as_posix() for path in verified.files("soak")}
    for path in ("engine/rounds", "methods/fedpac", "measure/verdict", "runs/checkpoint", "run/assembly"):
        assert f"coterie/{path}.py" in covered, path
    assert {"coterie/studies/digits.toml", "tests/methods/test_soak.py", "constraints.txt"} <= covered
    assert not any(path.startswith(("coterie/report/", "coterie/deploy/")) for path in covered)


def test_every_test_that_may_be_left_out_is_in_a_covered_file() -> None:
    covered = set(verified.files("soak"))
    marked = [path for path in Path(__file__).parent.rglob("test_*.py") if "mark.soak" in path.read_text("utf-8")]
    assert {path for path in marked if path != Path(__file__)} <= covered
    assert len(marked) > 4


def test_a_change_of_any_file_changes_the_digest(tmp_path: Path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text("1", "utf-8")
    second.write_text("2", "utf-8")
    before = verified.digest([first, second], tmp_path)
    second.write_text("3", "utf-8")
    assert verified.digest([first, second], tmp_path) != before
