"""Which commit a run was made with, and which source files a party runs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from coterie.version import VERSION, build, commit, digest


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_commit_is_that_of_the_checkout_the_package_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_COMMIT", raising=False)
    package = tmp_path / "coterie"
    package.mkdir()
    (package / "version.py").write_text("VERSION = 1\n", "utf-8")
    assert commit(package) is None  # no checkout at all
    git(tmp_path, "init", "-q")
    (tmp_path / "other").write_text("", "utf-8")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-qm", "other")
    assert commit(package) is None  # installed within a checkout of something else
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "package")
    assert commit(package) == git(tmp_path, "rev-parse", "HEAD")
    (package / "version.py").write_text("VERSION = 2\n", "utf-8")
    assert commit(package) == git(tmp_path, "rev-parse", "HEAD") + "-dirty"


def test_a_copy_without_its_history_is_told_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_COMMIT", "abc123")
    assert commit(tmp_path) == "abc123"


def package(folder: Path) -> Path:
    (folder / "deploy").mkdir(parents=True)
    (folder / "wire.py").write_text("a = 1\n", "utf-8")
    (folder / "deploy" / "vault.py").write_text("b = 2\n", "utf-8")
    return folder


def test_the_same_source_files_have_the_same_build_wherever_they_lie(tmp_path: Path) -> None:
    one, other = package(tmp_path / "one"), package(tmp_path / "other")
    (other / "__pycache__").mkdir()
    (other / "__pycache__" / "wire.pyc").write_bytes(b"compiled")
    assert digest(one) == digest(other)


def test_a_file_that_was_changed_moved_or_added_is_another_build(tmp_path: Path) -> None:
    kinds = [package(tmp_path / name) for name in ("as it is", "changed", "moved", "added")]
    (kinds[1] / "wire.py").write_text("a = 2\n", "utf-8")
    (kinds[2] / "wire.py").rename(kinds[2] / "deploy" / "wire.py")
    (kinds[3] / "more.py").write_text("", "utf-8")
    assert len({digest(each) for each in kinds}) == 4


def test_a_build_is_the_version_and_the_hash_of_its_files() -> None:
    version, _, hashed = build().partition("+")
    assert version == VERSION and len(hashed) == 16 and int(hashed, 16) >= 0
