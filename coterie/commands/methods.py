"""`coterie new-method`: a method of one's own to start from, and its test."""

import keyword
import re
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from coterie.errors import BadInput, refused

SKELETON = "NewMethod"  # the class of coterie/commands/skeleton.py
TEST = '''"""{kind} through the suite that every method runs through."""

from {name} import {kind}

from coterie import check_method


def test_{name}_is_a_method():
    check_method({kind}())
'''
PACKAGE = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{label}"
version = "0.1.0"
dependencies = ["coterie"]

[project.entry-points."coterie.methods"]
{label} = "{name}:{kind}"

[tool.setuptools]
py-modules = ["{name}"]
"""


def new_method(
    name: Annotated[str, typer.Argument(help="its file without .py, e.g. my_method")],
    into: Annotated[Path, typer.Option(help="the folder to write to")] = Path(),
    package: Annotated[bool, typer.Option("--package", help="and pyproject.toml, by which pip installs it")] = False,
) -> None:
    """Write a method to start from.

    NAME.py is a method that works as it stands, with comments that say what to change; test_NAME.py holds it against
    the suite that every method runs through. What exists is never overwritten.
    """
    kind = class_name(name)
    skeleton = resources.files("coterie.commands").joinpath("skeleton.py").read_text("utf-8")
    files = {
        into / f"{name}.py": skeleton.replace(SKELETON, kind),
        into / f"test_{name}.py": TEST.format(name=name, kind=kind),
    }
    if package:
        files[into / "pyproject.toml"] = PACKAGE.format(name=name, kind=kind, label=name.replace("_", "-"))
    for path in files:
        if path.exists():
            raise BadInput(f"{path}: exists already and is not overwritten; give another name or remove it")
    if find_spec(name) is not None:
        raise BadInput(f"new-method {name}: a Python module of that name exists, and one would hide the other")
    with refused(f"--into {into}", "give a folder that can be written"):
        into.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, "utf-8")
    for path in files:
        typer.echo(f"Wrote {path}")
    typer.echo(f"Try it:  python -m pytest {into / f'test_{name}.py'}")


def class_name(name: str) -> str:
    """my_method -> MyMethod."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name, re.ASCII) or keyword.iskeyword(name):
        raise BadInput(f"new-method {name}: expected a Python module's name in lower case, e.g. my_method")
    return "".join(word.capitalize() for word in name.split("_"))
