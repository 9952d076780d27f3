"""Parts of a run go apart into processes where that is worth it, and give the same whether they do or not."""

import os
import signal
import sys
import time
from threading import Thread

import pandas as pd
import pytest
import torch
from command import call, small

from coterie.errors import BadInput, warn
from coterie.run import spread as module
from coterie.run.spread import spread

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    torch.set_num_threads(2)
    monkeypatch.setattr(module, "WORTH", 1e-9)
    yield
    torch.set_num_threads(1)


def processes(thin=True):
    """By part, the process that it was worked on in."""
    found = {}
    spread(
        range(5), lambda part, tell: tell({"pid": os.getpid()}), lambda part, n: found.update({part: n["pid"]}), thin
    )
    return found


@linux
def test_all_parts_but_the_first_are_worked_on_in_processes_of_their_own():
    found = processes()
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert found[0] == os.getpid()
    assert len({*found.values()}) == 5


def test_what_threads_are_good_for_stays_here():
    assert {*processes(thin=False).values()} == {os.getpid()}


def test_with_one_thread_everything_stays_here():
    torch.set_num_threads(1)
    assert {*processes().values()} == {os.getpid()}


def test_short_work_stays_here(monkeypatch):
    monkeypatch.setattr(module, "WORTH", 60.0)
    assert {*processes().values()} == {os.getpid()}


def test_a_thread_keeps_its_work():
    found = []
    thread = Thread(target=lambda: found.append(processes()))
    thread.start()
    thread.join()
    assert {*found[0].values()} == {os.getpid()}


@linux
def test_the_heaviest_of_what_goes_apart_begins_first(monkeypatch):
    begun = []
    started = module._started
    monkeypatch.setattr(module, "_started", lambda part, work: begun.append(part) or started(part, work))
    spread(range(4), lambda part, tell: None, lambda part, news: None, True, weight=float)
    assert begun == [3, 2, 1]


@linux
def test_a_part_has_one_thread_wherever_it_is_worked_on():
    threads = []
    spread(range(3), lambda i, tell: tell({"n": torch.get_num_threads()}), lambda i, n: threads.append(n["n"]), True)
    assert threads == [1, 1, 1]
    assert torch.get_num_threads() == 2


@linux
def test_what_is_wrong_in_a_process_is_raised_here():
    def work(part, tell):
        if part == 2:
            raise BadInput("part 2 is wrong")

    with pytest.raises(BadInput, match="part 2 is wrong"):
        spread(range(4), work, lambda part, news: None, True)


@linux
def test_the_part_of_a_process_that_was_killed_is_done_here(tmp_path):
    def work(part, tell):
        if part == 1 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        tell({"pid": os.getpid()})

    found = {}
    spread(range(4), work, lambda part, news: found.update({part: news["pid"]}), True)
    assert sorted(found) == [0, 1, 2, 3]
    assert found[1] == os.getpid()


@linux
def test_what_a_process_warns_of_is_shown_here(capsys):
    spread(range(3), lambda part, tell: warn(f"part {part}"), lambda part, news: None, True)
    assert sorted(capsys.readouterr().err.splitlines()) == [f"coterie: part {part}" for part in range(3)]


@linux
def test_long_news_arrive_whole():
    heard = []
    spread(range(3), lambda i, tell: tell({"text": "x" * 300_000}), lambda i, n: heard.append(len(n["text"])), True)
    assert heard == [300_000] * 3


@linux
def test_processes_end_with_the_one_that_started_them():
    here, there = os.pipe()
    parent = os.fork()
    if not parent:

        def work(part, tell):
            if part:
                os.write(there, b"%d\n" % os.getpid())
                time.sleep(60)

        spread(range(3), work, lambda part, news: None, True)
        os._exit(1)
    os.close(there)
    with os.fdopen(here) as lines:
        children = {int(lines.readline()) for _ in range(2)}
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert lines.read() == ""  # the pipe's end: nobody is left who could write
    assert len(children) == 2


@linux
def test_a_study_gives_the_same_bits_side_by_side_and_one_after_another(tmp_path, monkeypatch):
    study = small(tmp_path, **{"lr = 0.1": 'lr = "auto"', "rounds = 2": "rounds = 2\nclip_gradient = 5.0"})
    forked = []
    started = module._started
    monkeypatch.setattr(module, "_started", lambda part, work: forked.append(part) or started(part, work))
    words = ("run", study, "--methods", "separate,fedavg,fedamp", "--seeds", "0,1", "--quiet", "--out")
    assert call(*words, tmp_path / "apart") == 0
    assert len(forked) == 7  # two of three searches, five of six trainings
    monkeypatch.setattr(module, "_may_fork", lambda: False)
    assert call(*words, tmp_path / "here") == 0
    for name in ("results.parquet", "predictions.parquet", "tuning.parquet"):
        one, other = (pd.read_parquet(tmp_path / each / name) for each in ("apart", "here"))
        pd.testing.assert_frame_equal(one, other)
    one, other = (sorted((tmp_path / each / "models").rglob("*.safetensors")) for each in ("apart", "here"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    assert one
