"""What TensorBoard and MLflow hold of a run is what the run measured."""

import pandas as pd
import pytest
from command import call, small
from own_silos import hospitals

from coterie.run import tracking
from coterie.studies import study


def means(out, method, measure="accuracy"):
    """The mean test score over silos after each round, as the run wrote it."""
    table = pd.read_parquet(out / "results.parquet")
    mine = table[(table["method"] == method) & (table["split"] == "test") & (table["measure"] == measure)]
    return mine.groupby("round")["value"].mean().to_dict()


def events_of(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


@pytest.fixture
def client_of(monkeypatch):
    """Asks the database that a run has left."""
    for module in tracking.MLflow.needs:
        pytest.importorskip(module)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow import MlflowClient

    return lambda out: MlflowClient(tracking_uri=f"sqlite:///{out / 'mlflow.db'}")


def stopped_after_logging(monkeypatch, tracker):
    """The command is killed just after a tracker has logged fedamp's first round."""
    log = tracker.log

    def logged(self, method, seed, report):
        log(self, method, seed, report)
        if (method, report.round) == ("fedamp", 1):
            raise KeyboardInterrupt

    monkeypatch.setattr(tracker, "log", logged)


def test_tensorboard_holds_every_round_of_every_method_and_seed(tmp_path):
    out = tmp_path / "out"
    words = ("--seeds", "3", "--track", "tensorboard", "--out", out, "--quiet")
    assert call("run", small(tmp_path), *words) == 0
    assert {path.name for path in (out / "tensorboard").iterdir()} == {"separate-seed-3", "fedamp-seed-3"}
    for method in ("separate", "fedamp"):
        events = events_of(out / "tensorboard" / f"{method}-seed-3")
        logged = {event.step: event.value for event in events.Scalars("accuracy/test")}
        assert logged == pytest.approx(means(out, method)) and set(logged) == {0, 1, 2}
        assert b"[methods.fedamp]" in events.Tensors("study/text_summary")[0].tensor_proto.string_val[0]


@pytest.mark.slow
def test_mlflow_holds_every_round_and_what_was_set(tmp_path, client_of):
    out = tmp_path / "out"
    assert call("run", small(tmp_path), "--methods", "fedamp", "--track", "mlflow", "--out", out, "--quiet") == 0
    client = client_of(out)
    [run] = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert (run.info.run_name, run.info.status) == ("fedamp, seed 0", "FINISHED")
    assert (run.data.params["method.tau"], run.data.params["train.lr"], run.data.params["seed"]) == ("0.75", "0.1", "0")
    logged = {each.step: each.value for each in client.get_metric_history(run.info.run_id, "accuracy/test")}
    assert logged == pytest.approx(means(out, "fedamp")) and set(logged) == {0, 1, 2}


def test_tensorboard_holds_no_round_twice_of_a_run_that_was_stopped_and_resumed(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stopped_after_logging(patch, tracking.TensorBoard)
        assert call("run", small(tmp_path), "--track", "tensorboard", "--out", out, "--quiet") == 130
    assert call("run", "--resume", out, "--track", "tensorboard", "--quiet") == 0
    for method in ("separate", "fedamp"):
        logged = events_of(out / "tensorboard" / f"{method}-seed-0").Scalars("accuracy/test")
        assert [event.step for event in logged] == [0, 1, 2]
        assert [event.value for event in logged] == pytest.approx(list(means(out, method).values()))


@pytest.mark.slow
def test_mlflow_goes_on_in_the_runs_of_a_study_that_was_stopped(tmp_path, monkeypatch, client_of):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stopped_after_logging(patch, tracking.MLflow)
        assert call("run", small(tmp_path), "--track", "mlflow", "--out", out, "--quiet") == 130
    assert call("run", "--resume", out, "--track", "mlflow", "--quiet") == 0
    client = client_of(out)
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert {run.info.run_name: run.info.status for run in runs} == dict.fromkeys(
        ("separate, seed 0", "fedamp, seed 0"), "FINISHED"
    )
    for run in runs:
        history = client.get_metric_history(run.info.run_id, "accuracy/test")
        assert sorted(each.step for each in history) == [0, 1, 2]


def test_regression_is_tracked_by_its_error(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    hospitals(tmp_path / "hospitals")
    words = ("--silos", "hospitals", "--label", "cost", "--drop", "patient,outcome", "--methods", "fedavg")
    assert call("run", *words, "--rounds", 2, "--track", "tensorboard", "--out", "out", "--quiet") == 0
    events = events_of("out/tensorboard/fedavg-seed-0")
    told = events.Tensors("study/text_summary")[0].tensor_proto.string_val[0].decode()
    found = study.read("out/study.toml")["methods"]["fedavg"]["train"]["lr"]  # which a search has found
    assert f"lr = {found}" in told and 'lr = "auto"' not in told
    logged = events.Scalars("rmse/test")
    assert {event.step: event.value for event in logged} == pytest.approx(means(tmp_path / "out", "fedavg", "rmse"))


def test_the_settings_of_a_method_are_its_own(tmp_path):
    table = study.read(small(tmp_path))
    table["methods"]["fedamp"]["train"] = {"lr": 0.7}
    checked = study.check(table).as_table()
    assert tracking.settings(checked, "fedamp", 0)["train.lr"] == 0.7
    assert tracking.settings(checked, "separate", 0)["train.lr"] == 0.1


def test_a_tracker_that_is_unknown_or_not_installed_is_one_line_before_any_training(tmp_path, monkeypatch, capsys):
    words = ("run", small(tmp_path), "--out", tmp_path / "out", "--track")
    assert call(*words, "tensorbord") == 2
    assert "did you mean 'tensorboard'?" in capsys.readouterr().err
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    assert call(*words, "tensorboard,mlflow") == 2
    assert "pip install 'coterie[tracking]'" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_without_the_option_no_tracker_writes(tmp_path):
    assert call("run", small(tmp_path), "--out", tmp_path / "out", "--quiet") == 0
    assert not (tmp_path / "out/tensorboard").exists() and not (tmp_path / "out/mlflow.db").exists()
