"""The report is one file that loads nothing, and no name in the data can run in it."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from coterie.errors import BadInput
from coterie.measure.judgement import judgement
from coterie.measure.metrics import summarize
from coterie.report.page import page_of, render
from coterie.runs.read import Run

EVIL = "<img src=x onerror=alert(1)>"
QUOTES = "\"'><b onmouseover='alert(3)'>"
CLOSER = "</script><script>alert(2)</script>"


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of every script."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self.text = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data):
        if self.tags and self.lasttag == "script" and self.cdata_elem == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        else:
            self.text.append(data)

    def count(self, name):
        return sum(tag == name for tag, _ in self.tags)


def study(measure="accuracy", scores=(("separate", 0.5), ("fedamp", 0.75)), silos=("a", EVIL, CLOSER, QUOTES)):
    rows = [(m, 0, r, s, "test", measure, v * r / 2) for m, v in scores for r in (1, 2) for s in silos]
    results = pd.DataFrame(rows, columns=["method", "seed", "round", "silo", "split", "measure", "value"])
    cost = [{"bytes_up": 1e6, "bytes_down": 2e6, "train_seconds": 3.0}]
    sizes = {0: dict.fromkeys(silos, 10)}
    return summarize(results, sizes, {m: cost for m, _ in scores}), results


def judged(summary, results, traces=None, alone="separate"):
    sizes = {0: dict.fromkeys(results["silo"].unique(), 10)}
    found = judgement(summary, results, {}, traces or {}, alone, sizes, "auto")
    return {"verdict": found["verdict"], "significance": pd.DataFrame(found["significance"])}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    summary, results = study()
    silos = np.array(["a", EVIL, CLOSER, QUOTES])
    weights = {"collaboration": np.ones((2, 4, 4)), "pi": np.ones((2, 4, 1))}
    traces = {"fedamp": {"silos": silos, "rounds": np.array([1, 2]), **weights}}
    labels = pd.DataFrame({"silo": [EVIL, "a"], "label": [CLOSER, "0"], "count": [1, 2]})
    out = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    texts = {
        "command": f"coterie run {CLOSER}",
        "toml": f'name = "{EVIL}"',
        "device": QUOTES,
        "versions": {EVIL: CLOSER},
    }
    render(Run(EVIL, summary, results, traces, labels, about=texts, **judged(summary, results, traces)), out)
    return out.read_text(encoding="utf-8")


def test_it_loads_nothing_from_outside(page):
    for tag, attrs in Tags(page).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form"), tag
        assert not {"src", "srcset", "action", "data"} & set(attrs), (tag, attrs)
        assert attrs.get("href", "#")[0] == "#", (tag, attrs)
    policy = next(a["content"] for _, a in Tags(page).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "http" not in policy


def test_plotly_is_inlined_once(page):
    assert page.count("* plotly.js v") == 1


def test_no_figure_can_be_sent_to_a_cloud(page):
    own = next(
        text
        for _, text in Tags(page).scripts
        if "Plotly.newPlot(plot, figure)" in text and "IntersectionObserver" in text
    )
    assert "showSendToCloud: false" in own and 'plotlyServerURL: ""' in own


def test_hostile_names_are_inert(page):
    tags = Tags(page)
    assert EVIL not in page.replace("\\u003c", "")
    assert not any(attr.startswith("on") for _, attrs in tags.tags for attr in attrs)
    figures = [text for attrs, text in tags.scripts if attrs.get("type") == "application/json"]
    assert tags.count("script") == len(figures) + 2  # plotly and the page's own
    assert len(figures) == 12
    for text in figures:
        assert "<" not in text
        json.loads(text)
    shown = "".join(tags.text)
    assert EVIL in shown and CLOSER in shown and QUOTES in shown


def test_plotly_is_given_names_as_text(page):
    figures = [json.loads(text) for attrs, text in Tags(page).scripts if attrs.get("type") == "application/json"]
    named = [trace for figure in figures for trace in figure["data"] if trace["type"] == "heatmap"]
    assert any(name.startswith("&lt;img") for name in named[-1]["x"])


def test_sections_follow_what_is_known(page, tmp_path):
    titles = ["Verdict", "Scores", "Over the silos", "Significance", "Over the rounds", "Who learns from whom"]
    titles += ["Trajectories", "The data of the silos", "What it cost", "How to reproduce"]
    found = [page.index(f"<h3>{title}</h3>") for title in titles]
    assert found == sorted(found)
    summary, results = study()
    bare = {
        method: {**scores, "bytes_up": None, "bytes_down": None, "train_seconds": None}
        for method, scores in summary.items()
    }
    render(Run("bare", bare, results), tmp_path / "bare.html")
    text = (tmp_path / "bare.html").read_text(encoding="utf-8")
    assert [title for title in titles if f"<h3>{title}</h3>" in text] == ["Scores", "Over the silos", "Over the rounds"]


def test_the_table_marks_the_best(page):
    assert "<td class='best'>75.00</td>" in page
    assert "<td>50.00</td>" in page


def test_the_verdict_comes_first_in_words(page):
    shown = "".join(Tags(page).text)
    assert shown.index("No method is chosen: there are no validation data") < shown.index("Scores")
    assert "fedamp is the best that federates; with it" in shown and "mean accuracy is 25.0" in shown


def test_regression_renders(tmp_path):
    summary, results = study(measure="loss")
    render(Run("loss", summary, results, **judged(summary, results)), tmp_path / "loss.html")
    assert "<th>best loss</th>" in (tmp_path / "loss.html").read_text(encoding="utf-8")


def test_nothing_to_report_is_refused(tmp_path):
    with pytest.raises(BadInput, match="at least one method"):
        render(Run("none", {}, pd.DataFrame()), tmp_path / "none.html")


def test_importing_the_report_does_not_need_plotly():
    code = "import sys, coterie.report.page; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_where_the_tables_of_own_silos_differ_is_told_and_inert():
    summary, results = study()
    shown = page_of(Run("own", summary, results, differences=[f"age, {EVIL}: missing"]))
    assert "Where the silos' tables differ" in shown
    assert "age, &lt;img src=x" in shown and EVIL not in shown


def test_too_few_silos_for_any_significance_are_told_so():
    summary, results = study()
    shown = page_of(Run("few", summary, results, **judged(summary, results)))
    assert "of so few silos and 1 pair none can be" in shown
