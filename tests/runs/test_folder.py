"""The folder of a run: who may take it, what a run that ends early leaves in it, what can be read of it meanwhile."""

import json
import tomllib

import numpy as np
import pandas as pd
import pytest
import torch
from command import SMALL, call, same, small
from safetensors.torch import load_file

from coterie.codec import save_tensors
from coterie.errors import BadInput, Stopped
from coterie.run import experiment, finished
from coterie.runs import checkpoint
from coterie.runs import folder as run_folder
from coterie.runs.folder import COLUMNS, partial_results
from coterie.studies.study import check


def test_a_folder_is_made_with_its_parents_and_goes_with_them(tmp_path):
    out = tmp_path / "a" / "b" / "c"
    made = run_folder.claim(out)
    assert made == [out, out.parent, out.parent.parent]
    (out / "models").mkdir()
    (out / "models" / "x").touch()
    run_folder.release(out, made)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_taken_and_left_empty(tmp_path):
    assert run_folder.claim(tmp_path) == []
    (tmp_path / "x").touch()
    with pytest.raises(BadInput, match="exists already and is not overwritten"):
        run_folder.claim(tmp_path)  # another run
    run_folder.release(tmp_path, [])
    assert list(tmp_path.iterdir()) == []


def test_a_name_too_long_leaves_no_parents(tmp_path):
    with pytest.raises(BadInput, match="File name too long"):
        run_folder.claim(tmp_path / "a" / ("x" * 300))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_held_by_one_run(tmp_path):
    busy = pytest.raises(BadInput, match="another process is running in this folder")
    with run_folder.held(tmp_path), busy, run_folder.held(tmp_path):
        raise AssertionError("two hold it")
    with run_folder.held(tmp_path):
        pass


def test_no_name_of_a_study_leads_out_of_the_folder_of_runs():
    folder = run_folder.default_folder(check({**tomllib.loads(SMALL), "name": "../../etc/x"}))
    assert folder.parent.name == "runs" and len(folder.parts) == 2


class Broken(Exception):
    """Something nobody thought of."""


SHORT = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 636.00 MiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), *SHORT, Broken()])
def test_a_run_that_fails_goes_on_afterwards_and_ends_the_same(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    study = check(tomllib.loads(SMALL))
    experiment.run_into(study, tmp_path / "whole", "", lambda *_: None)
    out = tmp_path / "deep" / "out put"
    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_parquet", fail)
        told = {KeyboardInterrupt: Stopped, Broken: Broken}.get(type(error), BadInput)
        with pytest.raises(told) as raised:
            experiment.run_into(study, out, "", lambda *_: None)
    if told is not Broken:
        assert str(raised.value).endswith(f"go on with: coterie run --resume '{out}'")
    assert len(partial_results(out)) == len(pd.read_parquet(tmp_path / "whole" / "results.parquet"))
    with monkeypatch.context() as patch:
        patch.setattr(experiment.Assembly, "train", fail)  # every method has ended: none is trained again
        experiment.resume(out, lambda *_: None)
    assert (out / "results.parquet").read_bytes() == (tmp_path / "whole" / "results.parquet").read_bytes()
    assert not (out / ".unfinished").exists() and not (out / ".checkpoints").exists()


@pytest.mark.parametrize("error", SHORT)
def test_a_machine_without_memory_is_told_in_one_line(tmp_path, capfd, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(experiment.Assembly, "engine", fail)
    assert call("run", small(tmp_path), "--quiet", "--out", tmp_path / "out") == 2
    said = capfd.readouterr().err
    assert said.startswith("coterie: out of memory") and said.count("\n") == 1 and "--resume" not in said
    assert ("on the GPU" in said) == isinstance(error, torch.OutOfMemoryError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [OSError(30, "Read-only file system"), KeyboardInterrupt(), BadInput("no such data")])
def test_a_run_that_fails_before_it_trains_leaves_nothing(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(experiment, "prepare", fail)
    with pytest.raises((BadInput, KeyboardInterrupt)) as raised:
        experiment.run_into(check(tomllib.loads(SMALL)), tmp_path / "deep" / "out", "", lambda *_: None)
    assert list(tmp_path.iterdir()) == []
    if isinstance(error, OSError):
        assert str(raised.value).endswith("Read-only file system; give a folder that can be written")


@pytest.fixture
def stopped(tmp_path):
    """A run on a file of data that was stopped in its second method."""
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(60) % 3)

    def stop(method, seed, progress):
        if (method, progress.round) == ("fedamp", 1):
            raise KeyboardInterrupt

    table = {**tomllib.loads(SMALL), "data": {"name": "npz", "path": str(tmp_path / "own.npz"), "silos": 3}}
    with pytest.raises(Stopped):
        experiment.run_into(check(table), tmp_path / "out", "coterie run", stop)
    return tmp_path / "out"


def refused(out, capfd):
    """The one line with which resuming is refused; nothing in the folder changes."""
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert call("run", "--resume", out, "--quiet") == 2
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    err = capfd.readouterr().err
    assert err.startswith("coterie: ") and err.count("\n") == 1
    return err


def test_data_that_vanished_or_changed_are_told_and_a_run_goes_on_once_they_are_back(stopped, capfd):
    path = stopped.parent / "own.npz"
    whole = path.read_bytes()
    path.unlink()
    assert "own.npz: cannot be read" in refused(stopped, capfd)
    x = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32)
    np.savez(path, x=x, y=np.arange(60) % 3)
    assert "the data are not those that the run began with" in refused(stopped, capfd)
    path.write_bytes(whole)
    told = []
    experiment.resume(stopped, lambda method, seed, progress: told.append((method, progress.round)))
    assert told == [("separate", 2), ("fedamp", 1), ("fedamp", 2)]
    assert json.loads((stopped / "summary.json").read_text("utf-8"))["seconds"] is None


def test_what_a_kill_in_the_middle_of_writing_models_left_is_gone_in_the_end(stopped):
    left = stopped / "models" / "fedamp" / ".tmpQlEWxD"
    left.parent.mkdir(parents=True)
    left.touch()
    experiment.resume(stopped, lambda *_: None)
    assert {path.suffix for path in left.parent.iterdir()} == {".safetensors"}


def test_another_machine_is_told(stopped, capfd, monkeypatch):
    monkeypatch.setattr(experiment, "versions", lambda plugins: {**finished.versions(plugins), "torch": "99"})
    experiment.resume(stopped, lambda *_: None)
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert f"torch {torch.__version__} -> 99; results may differ in their last bits" in err


def test_a_disk_that_fills_up_while_training_leaves_a_run_that_goes_on(tmp_path, capfd, monkeypatch):
    words = ("run", small(tmp_path), "--quiet", "--out")
    assert call(*words, tmp_path / "whole") == 0
    written = []

    def full(named, path, metadata):
        written.append(path)
        if len(written) > 4:
            raise OSError(28, "No space left on device")
        save_tensors(named, path, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_tensors", full)
        assert call(*words, tmp_path / "out") == 2
    said = f"--out {tmp_path / 'out'}: No space left on device; when that is mended, go on with: coterie run --resume "
    assert capfd.readouterr().err == f"coterie: {said}{tmp_path / 'out'}\n"
    assert call("run", "--resume", tmp_path / "out", "--quiet") == 0
    same(tmp_path / "out", tmp_path / "whole")


def test_a_disk_without_room_for_the_models_is_told_before_training(tmp_path, capfd, monkeypatch):
    words, usage = ("run", small(tmp_path), "--quiet", "--out"), experiment.shutil.disk_usage(tmp_path)
    assert call(*words, tmp_path / "whole") == 0
    files = (tmp_path / "whole" / "models").rglob("*.safetensors")
    tensors = sum(t.nbytes for path in files for t in load_file(path).values())
    monkeypatch.setattr(experiment.shutil, "disk_usage", lambda _: usage._replace(free=tensors - 1))
    assert call(*words, tmp_path / "out") == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and f"--out {tmp_path / 'out'}: the silos' models take" in said
    assert not (tmp_path / "out").exists()
    assert call(*words, tmp_path / "none", "--set", "engine.models=false") == 0
    assert not (tmp_path / "none" / "models").exists()
    monkeypatch.setattr(experiment.shutil, "disk_usage", lambda _: usage._replace(free=tensors))
    assert call(*words, tmp_path / "enough") == 0


def test_the_results_so_far_can_be_read_while_a_run_goes_on(tmp_path):
    out, seen = tmp_path / "out", []

    def watch(method, seed, progress):
        found = partial_results(out)
        assert list(found.columns) == COLUMNS
        seen.append((method, progress.round, found[found["method"] == method]["round"].max(), len(found)))

    finished = experiment.run_into(check(tomllib.loads(SMALL)), out, "", watch)
    assert [(method, told) for method, told, _, _ in seen] == [
        ("separate", 0), ("separate", 1), ("separate", 2), ("fedamp", 0), ("fedamp", 1), ("fedamp", 2),
    ]  # fmt: skip
    assert all(found == told for _, told, found, _ in seen)  # a round that is told is there to read
    assert [count for *_, count in seen] == sorted({count for *_, count in seen})
    pd.testing.assert_frame_equal(partial_results(out), finished.results)


def test_before_anything_is_measured_there_are_no_results(tmp_path):
    assert list(partial_results(tmp_path).columns) == COLUMNS
    assert partial_results(tmp_path).empty


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no unfinished run is there"),
        ("", "damaged"),
        ("[]", "damaged"),
        ('{"study": 1}', "damaged"),
        (b"\xff", "damaged"),
    ],
)
def test_a_folder_without_an_unfinished_run_is_refused_and_left_alone(tmp_path, capfd, content, said):
    if content is not None:
        (tmp_path / ".unfinished").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = sorted(tmp_path.iterdir())
    assert call("run", "--resume", tmp_path) == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_what_cannot_be_resumed_is_said(tmp_path, capfd):
    assert call("run", "--resume", tmp_path / "missing") == 2
    assert "no unfinished run is there" in capfd.readouterr().err
    study = small(tmp_path)
    assert call("run", study, "--resume", tmp_path) == 2
    assert "the folder says what to run; leave out all but --track and --quiet" in capfd.readouterr().err
    assert call("run", study, "--methods", "separate", "--rounds", "1", "--quiet", "--out", tmp_path / "out") == 0
    assert call("run", "--resume", tmp_path / "out") == 2
    assert "this run has finished" in capfd.readouterr().err


def test_the_lock_stays_with_an_unfinished_run_alone(tmp_path):
    with run_folder.held(tmp_path):
        (tmp_path / run_folder.UNFINISHED).touch()
    with run_folder.held(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {run_folder.UNFINISHED, run_folder.LOCK}
        (tmp_path / run_folder.UNFINISHED).unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_a_killed_process_left_takes_no_folder(tmp_path):
    (tmp_path / run_folder.LOCK).touch()
    assert run_folder.claim(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_refused_before_it_is_held(tmp_path):
    (tmp_path / run_folder.LOCK).mkdir()  # rights would not stop the superuser
    with (
        pytest.raises(BadInput, match=r"--out .*: Is a directory; give a folder that can be written"),
        run_folder.held(tmp_path),
    ):
        raise AssertionError("held")


def test_a_folder_that_is_gone_is_released_all_the_same(tmp_path):
    run_folder.release(tmp_path / "gone", [tmp_path / "gone"])
