"""A study whose silos are sharded over two processes: it ends as in one, and only the first writes and speaks."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
from command import call

from coterie.runs.checkpoint import Checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.soak]

STUDY = """
name = "ranks"
[data]
name = "digits"
silos = 7
groups = 3
sizes = [61, 40, 22]
test = 12
[model]
name = "mlp"
hidden = [8]
[train]
rounds = 3
local_epochs = 3
batch_size = 8
lr = 0.3
participation = 0.5
unseen = 0.15  # one silo, which has to do for two processes
[engine]
rows = "all"
[methods.fedamp]
tau = 0.75
[methods.fedem]
[methods.scaffold]
[methods.apple]
"""
KEYS = ["method", "seed", "round", "silo", "split", "measure"]


def on_two_ranks(*words: object) -> subprocess.CompletedProcess[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    return subprocess.run(
        [*command, "-m", "coterie", *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "study.toml").write_text(STUDY, "utf-8")
    assert call("run", folder / "study.toml", "--device", "cpu", "--out", folder / "one", "--quiet") == 0
    ended = on_two_ranks("run", folder / "study.toml", "--device", "cpu", "--out", folder / "two")
    assert ended.returncode == 0, ended.stderr
    (folder / "said").write_text(ended.stdout, "utf-8")
    return folder


def table(run: Path, name: str, keys: list[str]) -> pd.DataFrame:
    return pd.read_parquet(run / name).sort_values(keys, ignore_index=True)


def test_two_processes_give_the_results_of_one(folder):
    one, two = (table(folder / run, "results.parquet", KEYS) for run in ("one", "two"))
    pd.testing.assert_frame_equal(one[KEYS], two[KEYS])
    np.testing.assert_allclose(one["value"], two["value"], rtol=0, atol=1e-6)
    right = one["measure"].str.startswith("accuracy")
    assert np.array_equal(one["value"][right], two["value"][right])
    assert one["value"][right].nunique() > 10  # they did learn, each silo something else
    assert one["measure"].str.endswith("_unseen").any()


def test_every_sample_and_every_model_comes_to_the_process_that_writes(folder):
    keys = ["method", "silo", "sample"]
    pd.testing.assert_frame_equal(*(table(folder / run, "predictions.parquet", keys) for run in ("one", "two")))
    models = sorted(path.relative_to(folder / "one") for path in (folder / "one").glob("models/*/*"))
    assert models == sorted(path.relative_to(folder / "two") for path in (folder / "two").glob("models/*/*"))
    for name in models:
        one, two = (safetensors.torch.load_file(folder / run / name) for run in ("one", "two"))
        assert one.keys() == two.keys()
        for key in one:
            np.testing.assert_allclose(one[key], two[key], rtol=0, atol=1e-5)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What a summary says, but for what goes by the clock."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in ("command", "seconds", "train_seconds"):
                yield from leaves(each, f"{name}.{key}")
    else:
        yield name, value


def test_the_summaries_are_the_same_but_for_time(folder):
    one, two = (dict(leaves(json.loads((folder / run / "summary.json").read_text("utf-8")))) for run in ("one", "two"))
    assert len(one) > 100 and one.keys() == two.keys()
    for name, value in one.items():
        assert two[name] == (pytest.approx(value, abs=1e-4) if isinstance(value, float) else value), name


def test_one_folder_was_written_and_one_process_spoke(folder):
    assert {path.name for path in folder.iterdir()} == {"study.toml", "one", "two", "said"}
    assert {path.name for path in (folder / "two").iterdir()} == {path.name for path in (folder / "one").iterdir()}
    assert (folder / "said").read_text("utf-8").count("Results in") == 1


def test_what_cannot_run_is_said_once(folder):
    ended = on_two_ranks("run", folder / "study.toml", "--out", folder / "two")
    said = [line for line in ended.stderr.splitlines() if line.startswith("coterie:")]
    assert ended.returncode != 0 and len(said) == 1 and "exists already" in said[0]
    assert "RuntimeError" not in ended.stderr


def test_a_run_that_one_process_began_goes_on_in_two(folder, tmp_path, monkeypatch):
    out, keep = tmp_path / "stopped", Checkpoint.keep

    def stop(self, outcome, engine, done):
        keep(self, outcome, engine, done)
        if self.method == "fedem" and done == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "keep", stop)
        assert call("run", folder / "study.toml", "--device", "cpu", "--out", out, "--quiet") == 130
    ended = on_two_ranks("run", "--resume", out)
    assert ended.returncode == 0, ended.stderr
    one, other = (table(run, "results.parquet", KEYS) for run in (folder / "one", out))
    pd.testing.assert_frame_equal(one[KEYS], other[KEYS])
    np.testing.assert_allclose(one["value"], other["value"], rtol=0, atol=1e-6)
    assert len(list(out.glob("models/*/*"))) == len(list((folder / "one").glob("models/*/*")))
    assert not (out / ".checkpoints").exists()
