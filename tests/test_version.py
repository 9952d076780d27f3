"""Which commit a run was made with."""

import shutil
import subprocess
from pathlib import Path

import pytest

from coterie.version import commit


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
