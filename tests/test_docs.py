"""Every code block of these pages runs, in order, in a folder with the data that the page speaks of."""

import re
import shlex
from pathlib import Path

import pytest
from command import call
from own_silos import hospitals

from coterie.own_study import OWN

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"own-data.md": lambda folder: hospitals(folder / "hospitals")}  # and what makes its data
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page, tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(OWN["train"], "rounds", 2)  # the page's commands as they stand, but shorter
    PAGES[page](tmp_path)
    blocks = FENCE.findall((DOCS / page).read_text("utf-8"))
    assert {kind for kind, _ in blocks} == {"sh", "python"}
    names: dict[str, object] = {"__name__": "page"}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, page, "exec"), names)
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "coterie" and call(*words) == 0, line


def test_every_file_that_the_page_promises_is_there(tmp_path, monkeypatch):
    """The page of own data says what a run leaves; this looks."""
    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path / "hospitals")
    words = ["--silos", "hospitals", "--label", "outcome", "--drop", "patient,cost", "--rounds", 1, "--out", "results"]
    assert call("run", *words, "--methods", "fedamp", "--quiet") == 0
    page = (DOCS / "own-data.md").read_text("utf-8")
    for name in ("report.html", "results.parquet", "study.toml", "models/fedamp/north.safetensors"):
        assert name in page and (tmp_path / "results" / name).exists(), name
