"""The sdist holds all of the project, and the wheel made of it works outside of it."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_SHIPPED = (".ci/", ".gitignore", "hospitals/", "MANIFEST.in")
BUILD = "import sys; from setuptools import build_meta as build; print(getattr(build, sys.argv[1])(sys.argv[2]))"


def tracked() -> list[str]:
    try:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout")
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def built(kind: str, source: Path, into: Path) -> Path:
    made = subprocess.run(
        [sys.executable, "-c", BUILD, f"build_{kind}", into], cwd=source, check=True, capture_output=True, text=True
    )
    return into / made.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    """Built from what is tracked, as a clean clone has it."""
    pytest.importorskip("setuptools")
    source, into = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    return built("sdist", source, into)


@pytest.mark.slow
def test_the_sdist_holds_all_that_is_tracked(sdist):
    with tarfile.open(sdist) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    assert {name for name in tracked() if not name.startswith(NOT_SHIPPED)} <= held


@pytest.mark.slow
def test_an_editable_install_is_found_beside_the_clone(tmp_path):
    clone = tmp_path / "coterie"  # as `git clone` calls it
    for name in tracked():
        if name.startswith("coterie/") or "/" not in name:
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    with zipfile.ZipFile(built("editable", clone, tmp_path)) as archive:
        archive.extractall(tmp_path / "installed")
    found = "import site, sys; site.addsitedir(sys.argv[1]); import coterie.errors; print(coterie.__file__)"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    said = subprocess.run(
        [sys.executable, "-S", "-c", found, tmp_path / "installed"],
        cwd=tmp_path, env=env, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert Path(said.stdout.strip()) == clone / "coterie" / "__init__.py"


@pytest.mark.slow
def test_the_wheel_of_the_sdist_works_in_another_environment(sdist, tmp_path):
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    wheel = built("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if not name.startswith("coterie")]
    # An environment of its own; what Coterie depends on is lent from this one, without the editable install there.
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    install = ("install", "-q", "--no-index", "--no-deps", wheel)
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], env=env, check=True)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib"), "utf-8")

    def run(*words: object) -> str:
        return subprocess.run(words, cwd=tmp_path, env=env, check=True, capture_output=True, text=True).stdout

    assert run(python, "-c", "import coterie; print(coterie.__file__)").startswith(str(packages))
    command = tmp_path / "env" / "bin" / "coterie"
    assert "torch" in run(command, "doctor")
    short = ("--methods", "separate,fedavg", "--rounds", "1", "--tune", "off", "--set", "data.keep=40")
    assert "Report:" in run(command, "run", "flights", *short, "--out", "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
    assert summary["verdict"]["silos"] and (tmp_path / "out" / "report.html").exists()
