"""The search behind `lr = "auto"` between real silos: that of a simulation, its rounds exchanged like any others."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from coterie.deploy.home import write_whole
from coterie.deploy.messages import Job
from coterie.deploy.remote import Remote
from coterie.engine.method import Cohort
from coterie.engine.rounds import Outcome, Progress
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.methods.wrappers.candidates import Candidates
from coterie.methods.wrappers.spent import privacy_of
from coterie.run.tuning import GRID, Heat, advanced, halved, middle, optimizers, rungs_of
from coterie.runs.checkpoint import Checkpoint
from coterie.studies.study import Study

FOLDER = "tuning"  # in a run's folder: where the searches stand
SCORES = "scores.json"
NOT_TUNED = "not tuned, since every candidate's upload would spend privacy; it takes a fixed lr"


def extra_rounds(study: Study) -> dict[str, int]:
    """The rounds that the search of each method takes, by its label; none where there is nothing to search for."""
    found = dict[str, int]()
    for label, method in study.methods.items():
        keys, training = study.searched(label), study.training_of(label)
        if keys and privacy_of(method) is None:
            found[label] = len(optimizers(training, keys)) * search_rounds(training, keys)
    return found


def search_rounds(training: Training, keys: tuple[str, ...]) -> int:
    """The most rounds that candidates with one optimiser train for."""
    return rungs_of(training, sum(len(GRID[name]) for name in optimizers(training, keys)))[-1]


def announced(study: Study) -> list[str]:
    """What somebody who starts a study between real silos must know of its searches."""
    found = extra_rounds(study)
    each = ", ".join(f"{rounds} for {label}" for label, rounds in found.items())
    lines = [f"Tuned before they train, with rounds of their own: {each} (--tune off: none)"] if found else []
    return lines + [f"{label}: {NOT_TUNED}" for label in study.methods if study.searched(label) and label not in found]


@dataclass(frozen=True)
class RemoteSearch:
    """The search for one method, as the run's folder knows it."""

    folder: Path  # of the run
    place: int  # of the method in the study
    job: Job  # of the method's own rounds
    engine_of: Callable[[Job, str], Remote]  # the second is appended to the run's name

    def find(self, keys: tuple[str, ...], on_round: Callable[[Progress], None]) -> tuple[dict[str, Any], pd.DataFrame]:
        """The values of these keys that suit the method, and all that was tried."""
        method, model, roster = self.job.built()
        if (reason := method.refusal(roster, model)) is not None:
            raise BadInput(reason)
        training = self.job.training
        heats = [RemoteHeat(self, name, tuple(range(len(GRID[name])))) for name in optimizers(training, keys)]
        found = halved(heats, training, keys, on_round)
        for heat in heats:
            shutil.rmtree(heat.checkpoint.folder, ignore_errors=True)
        return found

    @property
    def home(self) -> Path:
        """Where it stands on the disk."""
        return self.folder / FOLDER / f"{self.place:02}"

    def known(self) -> dict[str, dict[str, list[float]]]:
        """The scores of the candidates that went on, by optimiser and round."""
        path = self.home / SCORES
        return json.loads(path.read_text("utf-8")) if path.exists() else {}

    def note(self, optimizer: str, rung: int, scores: list[float]) -> None:
        """Write down what candidates were worth after so many rounds, so that nobody is asked again."""
        known = self.known()
        known.setdefault(optimizer, {})[str(rung)] = scores
        self.home.mkdir(parents=True, exist_ok=True)
        write_whole(self.home / SCORES, json.dumps(known).encode())


class RemoteHeat(Heat):
    """Candidates with the same optimiser, on silos that are elsewhere."""

    def __init__(
        self, search: RemoteSearch, optimizer: str, going: tuple[int, ...], best: list[float] | None = None
    ) -> None:
        rates = GRID[optimizer]
        job = replace(
            search.job, train=search.job.train | {"optimizer": optimizer, "lr": 1.0}, rates=rates, going=going
        )
        super().__init__(job.training, tuple(rates[place] for place in going), best)
        self.search, self.optimizer, self.going = search, optimizer, going
        self.engine = search.engine_of(job, f"-tuning-{optimizer}")
        assert isinstance(self.engine.method, Candidates)
        self.method, self.model = self.engine.method, self.engine.model
        self.roster = job.roster(self.model.device)
        self.checkpoint = Checkpoint(search.home / optimizer, job.method, job.seed, every=1)
        self.outcome = Outcome(self.method.open(self.roster, self.model).settled())
        self.done = self.checkpoint.restore(self.outcome, self.engine) or 0

    def advance(self, round: int) -> None:
        scored = max(map(int, self.search.known().get(self.optimizer, {})), default=0)
        if round < max(self.done, scored):
            return
        everyone = Cohort.everyone(self.roster, self.model, round)
        self.outcome.server = advanced(self.engine, self.method, self.outcome.server, everyone, self.training)
        self.checkpoint.keep(self.outcome, self.engine, round + 1)

    def scores(self, round: int) -> list[float]:
        known = self.search.known().get(self.optimizer, {})
        if str(round + 1) not in known:
            everyone = Cohort.everyone(self.roster, self.model, round)
            values = self.engine.scores(everyone, self.method.send(self.outcome.server, everyone))
            means = [middle(each) for each in values.tolist()]
            self.search.note(self.optimizer, round + 1, [mean if math.isfinite(mean) else -math.inf for mean in means])
            return means
        return known[str(round + 1)]

    def narrowed(self, chosen: list[int]) -> "RemoteHeat":
        going, best = tuple(self.going[i] for i in chosen), [self.best[i] for i in chosen]
        return RemoteHeat(self.search, self.optimizer, going, best)
