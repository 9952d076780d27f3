"""Packages that are there as if pip had installed them: a module and its metadata in a folder of the path."""

import configparser
import os
import sys
import tomllib
from pathlib import Path

import pytest

from coterie import registry

TOY = Path(__file__).parent / "toy_package"


def install(folder: Path, name: str, version: str, entries: dict[str, dict[str, str]], text: str) -> Path:
    """A package of one module, which its entry points name."""
    (module,) = {place.partition(":")[0] for group in entries.values() for place in group.values()}
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    written = configparser.ConfigParser()
    written.read_dict(entries)
    with (info / "entry_points.txt").open("w") as file:
        written.write(file)
    (folder / f"{module}.py").write_text(text)
    return folder


def install_toy(folder: Path, version: str = "1.0") -> Path:
    """The package of tests/toy_package."""
    project = tomllib.loads((TOY / "pyproject.toml").read_text("utf-8"))["project"]
    return install(folder, project["name"], version, project["entry-points"], (TOY / "toy.py").read_text("utf-8"))


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find packages of this folder too, here and in programs started from here."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    forget()


def forget() -> None:
    """Look again at what is installed, and import it anew."""
    for group in ("coterie.methods", "coterie.models", "coterie.data", "coterie.measures"):
        for _, each in registry.installed(group):
            sys.modules.pop(each.module, None)
    registry.installed.cache_clear()
