"""The progress bar, in a terminal and in a notebook."""

import io
import sys
import types
from contextlib import nullcontext

import pytest
from command import SMALL
from rich.console import Console

from coterie.engine.rounds import Progress
from coterie.run import progress
from coterie.run.progress import shown
from coterie.studies.study import check, loads

HALFWAY = Progress(1, 2, 0.5)


def told(console, quiet=False, report=HALFWAY):
    """Tell a bar of one round of two."""
    with shown(check(loads(SMALL, "small"), ["separate"]), console, quiet) as watch:
        watch("separate", 0, report)


def test_a_terminal_shows_the_method_and_its_accuracy():
    out = io.StringIO()
    told(Console(file=out, force_terminal=True, width=100))
    assert "separate" in out.getvalue() and "accuracy 50.0%" in out.getvalue()


def test_a_regression_shows_its_error():
    out = io.StringIO()
    told(Console(file=out, force_terminal=True, width=100), report=Progress(1, 2, 314.159, "rmse"))
    assert "rmse 314.2" in out.getvalue()


def test_after_the_last_round_the_bar_says_what_is_waited_for():
    out = io.StringIO()
    told(Console(file=out, force_terminal=True, width=100), report=Progress(2, 2, 0.5))
    assert "verdict, report" in out.getvalue()


def test_the_rounds_of_a_searchs_candidates_count_so_that_the_time_left_is_known(monkeypatch):
    seen = list[dict[str, object]]()
    monkeypatch.setattr(progress.Progress, "update", lambda bar, job, **fields: seen.append(fields))
    table = {**loads(SMALL, "small"), "train": {"rounds": 2, "lr": "auto"}}
    with shown(check(table, ["separate", "fedavg"]), Console(file=io.StringIO(), force_terminal=True), False) as watch:
        watch("separate", 0, Progress(1, 2, None, tuning=True, tried=7, to_try=11))
        watch("separate", 0, Progress(2, 2, None, tuning=True, tried=11, to_try=11))
        watch("fedavg", 0, Progress(1, 2, None, tuning=True, tried=7, to_try=11))
        watch("separate", 0, Progress(2, 2, 0.5))
        watch("fedavg", 0, Progress(2, 2, 0.5))
    assert [(each["completed"], each["total"]) for each in seen] == [(7, 26), (11, 26), (18, 26), (24, 26), (26, 26)]
    assert "verdict, report" in str(seen[-1]["what"])


def test_a_file_and_the_quiet_get_none():
    out = io.StringIO()
    told(Console(file=out))
    told(Console(file=out, force_terminal=True), quiet=True)
    assert out.getvalue() == ""


@pytest.fixture
def notebook(monkeypatch):
    """What Jupyter shows, by stand-ins for its modules."""
    displayed = []

    class Output(nullcontext):
        def clear_output(self, wait):
            pass

        def close(self):
            pass

    for name, made in (
        ("IPython", {}),
        ("IPython.display", {"display": displayed.append, "HTML": str}),
        ("ipywidgets", {"Output": Output}),
    ):
        module = types.ModuleType(name)
        vars(module).update(made)
        monkeypatch.setitem(sys.modules, name, module)
    return displayed


def test_a_notebook_gets_a_bar_too(notebook):
    told(Console(force_jupyter=True))
    assert notebook


def test_a_notebook_that_cannot_show_a_bar_is_told_once(notebook, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    told(Console(force_jupyter=True))
    assert not notebook
    assert capsys.readouterr().err == "coterie: no progress bar: pip install ipywidgets\n"


def test_a_search_is_named_and_counts_no_round():
    out = io.StringIO()
    told(Console(file=out, force_terminal=True, width=100), report=Progress(2, 2, None, tuning=True))
    assert "tuning separate" in out.getvalue() and "0/2" in out.getvalue() and "verdict" not in out.getvalue()
