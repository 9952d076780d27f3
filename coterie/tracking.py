"""A run in TensorBoard or MLflow: what was set, and the mean test accuracy of every method and seed, round by round."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from coterie.engine.rounds import Progress
from coterie.errors import BadInput, Stopped, nearest
from coterie.experiment import Watch
from coterie.study import Study

ACCURACY = "accuracy/test"


class Tracker(Protocol):
    """Where a run is told to."""

    def tell(self, method: str, seed: int, round: int, accuracy: float) -> None:
        """One round's mean test accuracy over silos."""

    def close(self, status: str) -> None:
        """Nothing more comes."""


class TensorBoard:
    """Event files under the run's folder, one run of TensorBoard's for each method and seed."""

    needs = ("tensorboard",)

    def __init__(self, study: Study, out: Path) -> None:
        self.study, self.folder = study, out / "tensorboard"
        self.writers: dict[tuple[str, int], Any] = {}

    def tell(self, method: str, seed: int, round: int, accuracy: float) -> None:
        if (method, seed) not in self.writers:
            tensorboard: Any = import_module("torch.utils.tensorboard")
            writer = tensorboard.SummaryWriter(str(self.folder / f"{method}-seed-{seed}"))
            writer.add_text("study", f"```\n{self.study.as_toml()}```")
            self.writers[method, seed] = writer
        self.writers[method, seed].add_scalar(ACCURACY, accuracy, round)

    def close(self, status: str) -> None:
        for writer in self.writers.values():
            writer.close()


class MLflow:
    """A run of MLflow's for each method and seed, in the experiment of the study's name.

    It goes to MLFLOW_TRACKING_URI, or else to a database under the run's folder.
    """

    needs = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, study: Study, out: Path) -> None:
        self.study, self.out = study, out
        self.runs: dict[tuple[str, int], str] = {}
        self.client: Any = None
        self.experiment = ""

    def tell(self, method: str, seed: int, round: int, accuracy: float) -> None:
        if self.client is None:
            self._connect()
        if (method, seed) not in self.runs:
            run = self.client.create_run(self.experiment, run_name=f"{method}, seed {seed}").info.run_id
            for key, value in settings(self.study, method, seed).items():
                self.client.log_param(run, key, value)
            self.runs[method, seed] = run
        self.client.log_metric(self.runs[method, seed], ACCURACY, accuracy, step=round)

    def _connect(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing of a run is told to others unasked
        from mlflow import MlflowClient

        here = f"sqlite:///{(self.out / 'mlflow.db').resolve()}"
        self.client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", here))
        known = self.client.get_experiment_by_name(self.study.name)
        self.experiment = known.experiment_id if known else self.client.create_experiment(self.study.name)

    def close(self, status: str) -> None:
        for run in self.runs.values():
            self.client.set_terminated(run, status)


TRACKERS: dict[str, Any] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def check_trackers(names: Sequence[str]) -> None:
    """Unknown ones, and those that are not installed, are found before any training."""
    for name in names:
        if name not in TRACKERS:
            raise BadInput(f"--track {name}: no such tracker; {nearest(name, TRACKERS)}")
        if missing := [module for module in TRACKERS[name].needs if find_spec(module) is None]:
            raise BadInput(f"--track {name} needs {', '.join(missing)}; pip install 'coterie[tracking]'")


@contextmanager
def tracked(study: Study, names: Sequence[str], out: Path, watch: Watch) -> Iterator[Watch]:
    """What to call after each round, telling the trackers too; they write nothing before the first round is told."""
    trackers: list[Tracker] = [TRACKERS[name](study, out) for name in names]
    status = "FAILED"

    def told(method: str, seed: int, report: Progress) -> None:
        watch(method, seed, report)
        if report.accuracy is not None and study.training.measures(report.round):
            for tracker in trackers:
                tracker.tell(method, seed, report.round, report.accuracy)

    try:
        yield told
        status = "FINISHED"
    except (KeyboardInterrupt, Stopped):
        status = "KILLED"
        raise
    finally:
        for tracker in trackers:
            tracker.close(status)


def settings(study: Study, method: str, seed: int) -> dict[str, Any]:
    """What one method of a study was trained with, flat: train.lr, fedamp's own as method.sigma."""
    table = study.as_table()
    own = table["methods"][method]
    train = {**table["train"], **own.get("train", {})}
    chosen = {"data": table["data"], "model": table["model"], "train": train}
    chosen["method"] = {"name": method} | {key: value for key, value in own.items() if key != "train"}
    return {"seed": seed, **_flat(chosen)}


def _flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return flat
