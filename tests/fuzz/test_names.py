"""Names of silos and labels of methods: whatever they are, inert in the report and harmless as files."""

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from fuzzing import fuzz, scratch, survives
from hypothesis import example
from hypothesis import strategies as st
from mutate import names
from torch import nn

from coterie.data.silo import Part, Silo, check_silos
from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.measure.metrics import summarize
from coterie.personal.export import save_models
from coterie.report.page import render
from coterie.report.table import summary_table
from coterie.runs.read import Run
from coterie.studies.study import check
from coterie.wire import Predictor

ALLOWED = {
    "html", "head", "meta", "title", "style", "script", "body", "main", "header", "p", "h1", "h2",
    "h3", "h4", "nav", "noscript", "section", "div", "table", "thead", "tbody", "tr", "th", "td", "span", "details",
    "summary", "pre", "footer", "button", "a", "ul", "li", "ol", "em", "strong", "code", "label",
    "input", "select", "option", "svg", "path", "b", "i", "small", "br", "dl", "dt", "dd",
    "figure", "figcaption",
}  # fmt: skip
PARTS = {"#decision", "#evidence", "#predictions", "#training"}  # what the page links to within itself


class Tags(HTMLParser):
    """Tags, attributes and data scripts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def silo(name: str) -> Silo:
    part = Part(np.zeros((2, 3), np.float32), np.zeros(2, np.int64))
    return Silo(name, part, part, part)


def page_of(silos: list[str], label: str) -> str:
    check_silos([silo(name) for name in silos], 2)
    check({"methods": {label: {"method": "fedamp"}}})
    rows = [(label, 0, r, s, "test", "accuracy", 0.5) for r in (1, 2) for s in silos]
    results = pd.DataFrame(rows, columns=["method", "seed", "round", "silo", "split", "measure", "value"])
    summary = summarize(results, {0: dict.fromkeys(silos, 10)}, {})
    summary_table(summary)
    traces = {label: {"collaboration": np.ones((2, len(silos), len(silos))), "silos": np.array(silos)}}
    counts = pd.DataFrame({"silo": silos, "label": silos, "count": 1})
    with scratch() as folder:
        about = {"command": f"coterie run {label}", "toml": label}
        render(Run(label, summary, results, traces, counts, about=about), folder / "report.html")
        assert {path.name for path in folder.rglob("*")} == {"report.html"}
        return (folder / "report.html").read_text("utf-8")


@fuzz(120, st.lists(names, min_size=1, max_size=3, unique=True), names, memory=4 << 30)  # Arrow takes 1 GB at a time
@example(["\ud800"], "fedamp")
@example(["</script><img src=x onerror=alert(1)>", "a"], "<b>")
def test_names_are_inert_in_the_report(silos: list[str], label: str) -> None:
    page = survives(lambda: page_of(silos, label))
    if page is None:
        return
    tags = Tags(page).tags
    assert {tag for tag, _ in tags} <= ALLOWED
    for tag, attributes in tags:
        assert not any(
            key.startswith("on") or key in ("src", "srcset", "action", "formaction") for key in attributes
        ), (tag, attributes)
        assert attributes.get("href", "#evidence") in PARTS, (tag, attributes)
    for piece in page.split("<script type='application/json'>")[1:]:
        json.loads(piece.partition("</script>")[0])


@fuzz(200, st.lists(names, min_size=1, max_size=3, unique=True))
@example(["a b", "a_b", "a_b-1"])
@example(["../x", "..\\x"])
def test_models_are_files_of_their_folder_one_a_silo(silos: list[str]) -> None:
    model = Model(lambda: nn.Linear(2, 1), 0)
    models = Predictor(models=torch.zeros(len(silos), model.width))

    def save(folder: Path) -> None:
        check_silos([silo(name) for name in silos], 2)
        save_models(folder / "models", model, models, silos, {"round": 1})
        assert len(list((folder / "models").iterdir())) == len(silos)

    with scratch() as folder:
        survives(lambda: save(folder))
        assert {path.name for path in folder.iterdir()} <= {"models"}


@fuzz(300, names)
@example("../../evil")
@example("/tmp/evil")
@example("[/b]")
def test_a_label_names_a_file_of_the_results(label: str) -> None:
    study = survives(lambda: check({"methods": {label: {"method": "fedamp"}}}))
    for kept in study.methods if study is not None else ():
        with scratch() as folder:
            path = folder / f"{kept}.npz"
            path.write_bytes(b"")
            assert path.resolve().parent == folder.resolve()


def test_a_silo_is_not_called_by_half_a_letter() -> None:
    try:
        check_silos([silo("\ud800")], 2)
    except BadInput as error:
        assert "name" in str(error)
    else:
        raise AssertionError("taken")
