"""The pages are true: code blocks of the tutorials and the README run, in order, and every command anywhere is one."""

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import call
from own_silos import hospitals
from typer.main import get_command

import coterie as co
from coterie.commands.main import app
from coterie.studies import study
from coterie.studies.own import OWN

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = DOCS / "notebooks"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
PAGES = {  # and what makes its data
    "own-data.md": lambda folder: hospitals(folder / "hospitals"),
    "your-own-method.md": lambda folder: None,
    "reproduce-a-paper.md": lambda folder: None,
}


def blocks(page: Path) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = FENCE.findall(page.read_text("utf-8"))
    assert found
    return found


def commands(text: str) -> list[list[str]]:
    """The words of each line of a block, without prompts, remarks and where its output goes."""
    lines = [shlex.split(line.removeprefix("$ ").split(" > ")[0], comments=True) for line in text.splitlines()]
    return [[word for word in words if word != "&"] for words in lines if words]


def run_block(kind: str, text: str, names: dict[str, object]) -> None:
    if kind == "python":
        exec(compile(text, "page", "exec"), names)
    for program, *words in commands(text) if kind == "sh" else ():
        if program == "python":
            assert subprocess.run([sys.executable, *words]).returncode == 0, words
        else:
            assert program == "coterie" and call(*words) == 0, words


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page, tmp_path, monkeypatch):
    if page == "own-data.md":
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(OWN["train"], "rounds", 2)  # the page's commands as they stand, but shorter
    PAGES[page](tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for kind, text in blocks(DOCS / page):
        run_block(kind, text, names)


@pytest.mark.slow
def test_the_blocks_of_the_readme_on_own_data_run(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    # without what a reader of README has made there
    made = shutil.ignore_patterns("results", "*.onnx", "report.html")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=made)
    monkeypatch.chdir(tmp_path / "examples")
    monkeypatch.setitem(OWN["train"], "rounds", 2)
    names: dict[str, object] = {"__name__": "page"}
    ran = [
        run_block(*block, names)
        for block in blocks(ROOT / "README.md")
        if block[0] == "python" or "--label" in block[1]
    ]
    assert len(ran) == 2


def test_the_studies_of_the_page_on_studies_are_studies():
    whole = [text for kind, text in blocks(DOCS / "studies.md") if kind == "toml" and "[methods." in text]
    assert len(whole) == 2
    for text in whole:
        study.check(tomllib.loads(text))


def shown() -> list[tuple[str, list[str]]]:
    """Every `coterie …` line of every page; brackets about what may be left out are no part of it."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    texts = [
        (page, text)
        for page in pages
        for kind, text in FENCE.findall(page.read_text("utf-8"))
        if kind in ("sh", "console")
    ]
    return [
        (page.name, words[1:])
        for page, text in texts
        for words in commands(re.sub(r"[\[\]]", "", text))
        if words[0] == "coterie"
    ]


def test_every_command_on_a_page_exists_with_its_options():
    assert len(shown()) > 40
    for page, words in shown():
        command, rest = get_command(app), list(words)
        while hasattr(command, "commands") and not (command.invoke_without_command and not rest):
            assert rest and rest[0] in command.commands, (page, words)
            command = command.commands[rest.pop(0)]
        command.make_context("coterie", rest)  # parsed, not run: an unknown option raises


def test_every_file_that_the_page_promises_is_there(tmp_path, monkeypatch):
    """The page of own data says what a run leaves; this looks."""
    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path / "hospitals")
    words = ["--silos", "hospitals", "--label", "outcome", "--drop", "patient,cost", "--rounds", 1, "--out", "results"]
    assert call("run", *words, "--methods", "fedamp", "--quiet") == 0
    page = (DOCS / "own-data.md").read_text("utf-8")
    for name in ("report.html", "results.parquet", "study.toml", "models/fedamp/north.safetensors"):
        assert name in page and (tmp_path / "results" / name).exists(), name


def test_the_examples_are_those_that_the_tests_make(tmp_path):
    made = hospitals(tmp_path / "hospitals")
    examples = ROOT / "examples" / "hospitals"
    assert {file.name: file.read_text("utf-8") for file in made.iterdir()} == {
        file.name: file.read_text("utf-8") for file in examples.iterdir()
    }


def test_the_site_has_every_page_and_no_other() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:")[1]))
    sources = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    pages = {str(path.relative_to(DOCS).with_suffix(".md")) for path in sources}
    apart = {page for page in pages if page.startswith("results/")}  # those of tables are reached from the papers'
    assert pages - apart <= listed <= pages


def test_the_reference_has_what_users_call_by_the_names_they_call_it() -> None:
    named = set(re.findall(r"^::: coterie\.(\S+)$", (DOCS / "api.md").read_text("utf-8"), re.M))
    rooms = ("coterie.api", "coterie.result", "coterie.personal", "coterie.methods.wrappers.")
    called = {name for name in co.__all__ if getattr(getattr(co, name), "__module__", "").startswith(rooms)}
    assert named == called


def test_the_site_loads_nothing_from_elsewhere() -> None:
    """As far as its configuration says; the offline plugin adds a script of its own where none has this name."""
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    (script,) = re.findall(r"polyfills: \[(.*?)\]", config)
    assert "iframe-worker" in script and (DOCS / script).is_file()
    assert "font: false" in config and "http" not in config


def test_notebooks_are_kept_without_outputs_and_end_up_on_the_site_with_them():
    notebooks = [json.loads(path.read_text("utf-8")) for path in NOTEBOOKS.glob("*.ipynb")]
    assert len(notebooks) >= 3
    for cell in (each for notebook in notebooks for each in notebook["cells"] if each["cell_type"] == "code"):
        assert not cell["outputs"] and cell["execution_count"] is None
    pages = runpy.run_path(str(NOTEBOOKS / "pages.py"))
    figure = {"data": [{"name": "</script>"}], "layout": {"height": 300}}
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["Take fedamp.\n"]},
        {"output_type": "stream", "name": "stderr", "text": ["a warning"]},
        {"output_type": "display_data", "data": {pages["PLOTLY"]: figure}},
        {"output_type": "execute_result", "data": {"text/html": ["<table>\n", "</table>"], "text/plain": ["7"]}},
    ]
    cells = [{"cell_type": "markdown", "source": ["# One"]}, {"cell_type": "code", "source": ["1"], "outputs": outputs}]
    page = pages["as_markdown"]({"cells": cells}, "one.ipynb")
    assert "# One\n\nTo run it yourself: [one.ipynb](one.ipynb).\n\n```python\n1\n```" in page
    assert ">Take fedamp.</pre>" in page and "a warning" not in page and "<table> </table>" in page
    assert "height:300px" in page and page.count("</script>") == 2


def test_the_reference_has_the_options_that_a_function_takes(monkeypatch):
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object))
    extension = runpy.run_path(str(DOCS / "reference.py"))["WithOptions"]()
    for decorators, told in ((["coterie.options.keywords"], True), ([], False)):
        func = SimpleNamespace(
            path="coterie.api.Federation.train",
            module=SimpleNamespace(path="coterie.api"),
            decorators=[SimpleNamespace(callable_path=path) for path in decorators],
            docstring=SimpleNamespace(value="as written"),
        )
        extension.on_function(func=func)
        assert (func.docstring.value == co.Federation.train.__doc__) == told
        assert ("local_epochs=" in func.docstring.value) == told
    assert "extensions: [docs/reference.py]" in (ROOT / "mkdocs.yml").read_text("utf-8")
