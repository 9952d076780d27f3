"""The comparison with other libraries, where none of them is installed."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

PEERS = Path(__file__).parent.parent / "bench" / "peers"


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(PEERS)


@pytest.fixture
def tiny(peers, tmp_path):
    import work

    def made(name, size):
        work.write(tmp_path / "work.npz", name, size, seed=0)
        return work.Work(str(tmp_path / "work.npz"), "cpu")

    return made


@pytest.mark.slow
def test_ours_is_measured_and_absent_libraries_are_skipped_with_a_line(tmp_path):
    here = shutil.copytree(PEERS, tmp_path / "peers", ignore=shutil.ignore_patterns(".venv-*", "__pycache__"))
    few = ["--work", "mlp", "--clients", "4", "--rounds", "3", "--out", tmp_path]
    done = subprocess.run([sys.executable, here / "compare.py", *few], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    skipped = ("fluke, fedavg", "pfl, fedavg", "flower, fedavg", "fluke, fedamp", "nvflare, ditto", "fl4health, ditto")
    for absent in skipped:
        assert f"{absent}: skipped: not installed; run `python bench/peers/install.py" in done.stdout
    found = json.loads((tmp_path / "peers.json").read_text())
    both = [(peer, method) for method in ("fedavg", "fedamp", "ditto") for peer in ("coterie", "vmap")]
    assert [(line["peer"], line["method"]) for line in found["results"]] == both
    assert all(line["otherwise"] is None and line["rounds"] == 2 for line in found["results"])
    assert all(line["loss"] < math.log(10) for line in found["results"])  # better than guessing: it trained
    assert all(line["memory_mb"] > 50 for line in found["results"])  # torch alone takes more
    assert len(found["silent"]) == 9


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedamp", "ditto"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_loop_by_hand_trains_the_models_that_ours_trains(tiny, monkeypatch, name, method):
    import torch
    import work

    from coterie.engine import task

    monkeypatch.setattr(task, "BatchPlan", task.BatchPlan)  # the runner changes it
    import coterie_runner
    import vmap_runner

    monkeypatch.setattr(task, "BatchPlan", coterie_runner.InFileOrder)
    given = tiny(name, work.Size(clients=3, samples=16, batch=8))
    (ours_times, ours), (times, theirs) = (runner.run(given, method, 2) for runner in (coterie_runner, vmap_runner))
    assert len(ours_times) == len(times) == 2
    assert len(ours) == len(theirs) == (1 if method == "fedavg" else 3)
    for mine, other in zip(ours, theirs, strict=True):
        for key in given.weights:
            torch.testing.assert_close(mine[key], other[key], rtol=0, atol=1e-5)
        moved = max(float((other[key] - first).abs().max()) for key, first in given.weights.items())
        assert moved > 1e-3  # by far more than they may differ


def line(peer, method, loss, ms=1.0, **more):
    return {
        "work": "mlp", "peer": peer, "method": method, "ms": ms, "ms_low": ms, "ms_high": ms, "rounds": 3, "loss": loss,
        "client_steps_per_second": 1e3 / ms, "memory_mb": 100.0, "gpu_mb": None, **more,
    }  # fmt: skip


def test_a_line_says_how_many_times_ours_and_why_its_loss_is_another(peers):
    import compare

    lines = [line("coterie", "fedavg", 2.0), line("vmap", "fedavg", 2.0001, ms=3.0), line("pfl", "fedavg", 2.1)]
    lines += [line("coterie", "ditto", 1.0), line("fluke", "ditto", 1.01), line("fluke", "fedamp", 1.0)]
    found = compare.compared(lines)
    assert [line["ratio"] for line in found] == [1, 3, 1, 1, 1, None]  # of the last there is none of ours
    assert [line["otherwise"] is None for line in found] == [True, True, False, True, False, True]
    assert found[2]["otherwise"] == "not the same steps: do not compare its time"
    assert "along the gradient" in found[4]["otherwise"]
    table = compare.table("title", found)
    assert "GPU MB" not in [column.header for column in table.columns]
    losses = next(column for column in table.columns if column.header == "loss at the end")
    assert list(losses.cells) == ["2.0000", "2.0001", "2.1000*", "1.0000", "1.0100*", "1.0000"]


def test_the_gpus_memory_has_a_column_where_it_was_measured(peers):
    import compare

    table = compare.table("title", compare.compared([line("coterie", "fedavg", 2.0, gpu_mb=512.0)]))
    assert list(next(column for column in table.columns if column.header == "GPU MB").cells) == ["512"]


@pytest.mark.slow
def test_the_memory_of_a_run_is_that_of_all_its_processes(peers):
    import peak

    child = "import time; held = bytes(64 << 20); held = bytearray(b'1') * (64 << 20); time.sleep(1)"
    both = f"[subprocess.Popen([sys.executable, '-c', {child!r}]) for _ in range(2)]"
    parent = f"import subprocess, sys; [p.wait() for p in {both}]"
    done = peak.run([sys.executable, "-c", parent], dict(os.environ), 60, "cpu")
    assert done.code == 0
    assert 128 < done.memory / 2**20 < 256
    assert done.gpu is None


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended_with_what_it_started(peers, tmp_path):
    import peak

    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    apart = f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
    parent = f"import subprocess, sys, time; {apart}; time.sleep(60)"
    done = peak.run([sys.executable, "-c", parent], dict(os.environ), 3, "cpu")
    assert done.code is None
    status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")

    def ended() -> bool:
        with suppress(OSError):
            return status.read_text().split()[2] == "Z"
        return True

    until = time.monotonic() + 20  # a busy machine takes a while to end what was killed; it would sleep for 60
    while not ended() and time.monotonic() < until:
        time.sleep(0.05)
    assert ended()


def test_a_library_that_fails_is_named_with_the_last_line_of_its_error(peers, monkeypatch, tmp_path):
    import compare
    import peak

    def ended(code, out="", err=""):
        return lambda *asked: peak.Done(code, out, err, 0, None)

    def once():
        return compare.once("vmap", "fedavg", tmp_path, 4, 2, "cpu", 5)

    monkeypatch.setattr(peak, "run", ended(1, err="Traceback\nValueError: no"))
    assert once() == "failed: ValueError: no"
    monkeypatch.setattr(peak, "run", ended(None))
    assert once() == "failed: took more than 5 s"
    monkeypatch.setattr(peak, "run", ended(0, out='noise\n{"seconds": [1], "loss": 2}\n'))
    assert once() == {"seconds": [1], "loss": 2, "memory": 0, "gpu": None}


def test_every_process_of_pfl_gets_as_many_clients(peers):
    import compare

    assert [compare.processes(clients, 4, "cpu") for clients in (3, 10, 100, 7)] == [3, 2, 4, 1]
    assert compare.processes(100, 4, "cuda") == 1
