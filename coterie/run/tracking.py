"""A run in TensorBoard or MLflow: what was set, and the mean test score of every method and seed, round by round."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie import toml
from coterie.engine.rounds import Progress
from coterie.errors import BadInput, Stopped, nearest
from coterie.run.experiment import Watch
from coterie.studies.study import Study, loads

FOLDER = "coterie.folder"  # MLflow's tag by which a study that goes on finds its runs


class TensorBoard:
    """Event files under the run's folder, one run of TensorBoard's for each method and seed."""

    needs = ("tensorboard",)

    def __init__(self, study: Study, out: Path, resumed: bool) -> None:
        self.out, self.folder = out, out / "tensorboard"
        self.writers: dict[tuple[str, int], Any] = {}

    def log(self, method: str, seed: int, report: Progress) -> None:
        """One round's mean test score over silos."""
        if (method, seed) not in self.writers:
            tensorboard: Any = import_module("torch.utils.tensorboard")
            # What a run that was killed had logged of this round and of later ones is logged again.
            writer = tensorboard.SummaryWriter(str(self.folder / f"{method}-seed-{seed}"), purge_step=report.round)
            writer.add_text("study", f"```\n{toml.dumps(_trained(self.out))}```")
            self.writers[method, seed] = writer
        self.writers[method, seed].add_scalar(tag(report), report.score, report.round)

    def close(self, status: str) -> None:
        """Nothing more comes."""
        for writer in self.writers.values():
            writer.close()


class MLflow:
    """A run of MLflow's for each method and seed, in the experiment of the study's name.

    It goes to MLFLOW_TRACKING_URI, or else to a database under the run's folder.
    """

    needs = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, study: Study, out: Path, resumed: bool) -> None:
        self.study, self.out, self.resumed = study, out.resolve(), resumed
        self.runs: dict[tuple[str, int], str] = {}
        self.logged: dict[tuple[str, int], int] = {}  # the last round
        self.client: Any = None
        self.experiment = ""

    def log(self, method: str, seed: int, report: Progress) -> None:
        """One round's mean test score over silos."""
        if self.client is None:
            self._connect()
        this = (method, seed)
        if this not in self.runs:
            self.runs[this], self.logged[this] = self._begun(method, seed, report) or (self._begin(method, seed), -1)
        if report.round > self.logged[this]:
            self.client.log_metric(self.runs[this], tag(report), report.score, step=report.round)

    def _begin(self, method: str, seed: int) -> str:
        made = self.client.create_run(self.experiment, run_name=_name(method, seed), tags={FOLDER: str(self.out)})
        run = str(made.info.run_id)
        for key, value in settings(_trained(self.out), method, seed).items():
            self.client.log_param(run, key, value)
        return run

    def _begun(self, method: str, seed: int, report: Progress) -> tuple[str, int] | None:
        """The run that a study which goes on had begun, and its last round."""
        if not self.resumed:
            return None
        known = self.client.search_runs([self.experiment], order_by=["attributes.start_time DESC"])
        for each in known:
            if (each.info.run_name, each.data.tags.get(FOLDER)) == (_name(method, seed), str(self.out)):
                run = str(each.info.run_id)
                self.client.update_run(run, status="RUNNING")
                return run, max((m.step for m in self.client.get_metric_history(run, tag(report))), default=-1)
        return None

    def _connect(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing of a run goes to others unasked
        from mlflow import MlflowClient

        here = f"sqlite:///{self.out / 'mlflow.db'}"
        self.client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", here))
        known = self.client.get_experiment_by_name(self.study.name)
        self.experiment = known.experiment_id if known else self.client.create_experiment(self.study.name)

    def close(self, status: str) -> None:
        """Nothing more comes."""
        for run in self.runs.values():
            self.client.set_terminated(run, status)


def tag(report: Progress) -> str:
    """What a score is called: accuracy/test, of regression rmse/test."""
    return f"{report.measure}/test"


TRACKERS: dict[str, type[TensorBoard] | type[MLflow]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def check_trackers(names: Sequence[str]) -> None:
    """Unknown ones, and those that are not installed, are found before any training."""
    for name in names:
        if name not in TRACKERS:
            raise BadInput(f"--track {name}: no such tracker; {nearest(name, TRACKERS)}")
        if missing := [module for module in TRACKERS[name].needs if find_spec(module) is None]:
            raise BadInput(f"--track {name} needs {', '.join(missing)}; pip install 'coterie[tracking]'")


@contextmanager
def tracked(study: Study, names: Sequence[str], out: Path, watch: Watch, resumed: bool = False) -> Iterator[Watch]:
    """What to call after each round, which calls the trackers too; before the first round they write nothing."""
    trackers = [TRACKERS[name](study, out, resumed) for name in names]
    status = "FAILED"

    def reported(method: str, seed: int, report: Progress) -> None:
        watch(method, seed, report)
        if report.score is not None and study.training.measures(report.round):
            for tracker in trackers:
                tracker.log(method, seed, report)

    try:
        yield reported
        status = "FINISHED"
    except (KeyboardInterrupt, Stopped):
        status = "KILLED"
        raise
    finally:
        for tracker in trackers:
            tracker.close(status)


def _trained(out: Path) -> dict[str, Any]:
    """The study as it is trained, which a run writes before its first round: with what a search has found."""
    return loads((out / "study.toml").read_text("utf-8"), "study.toml")


def settings(table: Mapping[str, Any], method: str, seed: int) -> dict[str, Any]:
    """What one method of a study was trained with, flat: train.lr, fedamp's own as method.sigma."""
    own = table["methods"][method]
    train = {**table["train"], **own.get("train", {})}
    chosen = {"data": table["data"], "model": table["model"], "train": train}
    chosen["method"] = {"name": method} | {key: value for key, value in own.items() if key != "train"}
    return {"seed": seed, **toml.flat(chosen)}


def _name(method: str, seed: int) -> str:
    return f"{method}, seed {seed}"
