"""What a stopped run left in its folder, altered: gone on with as it was, or refused; never half believed."""

import io
import json
import warnings
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from fuzzing import fuzz, scratch, survives
from hypothesis import example
from hypothesis import strategies as st
from mutate import bytes_like, names, numbers

from coterie.engine.rounds import Outcome
from coterie.measure.metrics import summarize
from coterie.run import experiment
from coterie.runs.checkpoint import JOURNAL, Checkpoint
from coterie.runs.folder import UNFINISHED, Begun
from coterie.runs.read import read_run

values = st.recursive(numbers | names | st.none(), lambda inner: st.lists(inner, max_size=2), max_leaves=3)
BEGUN = {"study": "[methods.fedavg]\n", "command": "coterie run", "machine": {"device": "cpu"}, "data": {"0": "x"}}
begun = st.dictionaries(
    st.sampled_from(sorted(BEGUN)) | names, values | st.dictionaries(names, values, max_size=2), max_size=3
)


@fuzz(
    250,
    st.one_of(begun.map(lambda changes: json.dumps(BEGUN | changes).encode()), bytes_like(json.dumps(BEGUN).encode())),
)
@example(b"[" * 100_000)
@example(json.dumps(BEGUN | {"study": 3}).encode())
@example(json.dumps(BEGUN | {"machine": []}).encode())
def test_what_a_run_was_asked_is_read_or_refused(content: bytes) -> None:
    with scratch() as folder:
        (folder / UNFINISHED).write_bytes(content)
        read = survives(lambda: Begun.read(folder))
        if read is not None:
            survives(lambda: experiment.unfinished(folder))


@cache
def kept() -> tuple[str, bytes, bytes]:
    with scratch() as folder:
        checkpoint = Checkpoint(folder / "run", "fedavg", 0)
        outcome = Outcome(None)
        outcome.results = [
            pd.DataFrame({"round": [0], "silo": ["a"], "split": ["test"], "measure": ["loss"], "value": [1.0]})
        ]
        outcome.traces = {"collaboration": [torch.ones(2, 2).numpy()]}
        checkpoint.end(outcome)
        (path,) = (folder / "run").glob("ended-*")
        return path.name, path.read_bytes(), (folder / "run" / JOURNAL).read_bytes()


@fuzz(150, st.data(), memory=4 << 30)  # Arrow takes 1 GB at a time
def test_an_altered_checkpoint_is_not_used(data: Any) -> None:
    name, state, journal = kept()
    found, noted = data.draw(bytes_like(state)), data.draw(bytes_like(journal) | st.just(journal))
    with scratch() as folder, warnings.catch_warnings(action="ignore"):
        (folder / name).write_bytes(found)
        (folder / JOURNAL).write_bytes(noted)
        ended = survives(lambda: Checkpoint(folder, "fedavg", 0).ended())
    assert (ended is not None) == (found == state and noted.startswith(journal))


@cache
def finished() -> dict[str, bytes]:
    """The files of a run that has ended."""
    rows = [("fedavg", 0, round, silo, "test", "accuracy", 0.5) for round in (1, 2) for silo in ("a", "b")]
    results = pd.DataFrame(rows, columns=["method", "seed", "round", "silo", "split", "measure", "value"])
    methods = summarize(results, {0: {"a": 1, "b": 1}}, {})
    table, trace = io.BytesIO(), io.BytesIO()
    results.to_parquet(table, index=False)
    np.savez(trace, collaboration=np.ones((2, 2, 2)), silos=np.array(["a", "b"]))
    return {
        "summary.json": json.dumps({"study": "x", "methods": methods}).encode(),
        "study.toml": b"[methods.fedavg]\n",
        "results.parquet": table.getvalue(),
        "collaboration/fedavg.npz": trace.getvalue(),
    }


@fuzz(200, st.data(), memory=4 << 30)
def test_a_folder_of_results_is_read_or_refused(data: Any) -> None:
    files = dict(finished())
    name = data.draw(st.sampled_from(sorted(files)))
    files[name] = data.draw(bytes_like(files[name]))
    with scratch() as folder:
        (folder / "collaboration").mkdir()
        for each, content in files.items():
            (folder / each).write_bytes(content)
        survives(lambda: read_run(folder))


def test_a_whole_folder_of_results_is_read() -> None:
    with scratch() as folder:
        (folder / "collaboration").mkdir()
        for each, content in finished().items():
            (folder / each).write_bytes(content)
        run = read_run(folder)
        assert list(run.methods) == ["fedavg"] and "collaboration" in run.traces["fedavg"]
