"""A file that one process at a time holds."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
from coterie import lock

HOLDS = "import sys, time; from pathlib import Path; from coterie.lock import locked\n"
HOLDS += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


def test_a_file_is_held_by_one_and_then_by_the_next(tmp_path: Path) -> None:
    with lock.locked(tmp_path / "lock") as first, lock.locked(tmp_path / "lock", wait=False) as second:
        assert first and not second
    with lock.locked(tmp_path / "lock", wait=False) as third:
        assert third


def test_a_process_that_is_killed_lets_go(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with lock.locked(tmp_path / "lock", wait=False) as free:
        assert not free
    holder.kill()
    holder.communicate()
    with lock.locked(tmp_path / "lock") as free:
        assert free


def test_a_file_system_without_locks_lets_everybody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object, **named: object) -> bool:
        raise OSError("No locks available")

    monkeypatch.setattr(lock.FileLock, "acquire", refused)
    with lock.locked(tmp_path / "lock", wait=False) as free:
        assert free


def test_no_module_needs_what_only_some_systems_have() -> None:
    for path in Path(coterie.__file__).parent.rglob("*.py"):
        for statement in ast.parse(path.read_text("utf-8")).body:
            names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            assert not {"fcntl", "resource", "pwd", "grp"} & {*names}, path
