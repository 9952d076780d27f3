"""What training gives: scores as pandas, each silo's model, the report, and the folder that `coterie run` writes."""

import shutil
from collections.abc import Mapping, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pandas import DataFrame

from coterie.data.silo import HoldsData
from coterie.errors import BadInput, nearest
from coterie.measure.verdict_words import compact
from coterie.personal.file import load_model, silo_of
from coterie.personal.model import PersonalModel
from coterie.report.canvas import plotly_objects
from coterie.run.finished import Finished, write
from coterie.runs.folder import claim, leaving

FOLDED = ("per_silo", "per_silo_picked", "per_silo_cloud", "per_silo_unseen", "per_seed")  # tables of their own


@dataclass(frozen=True, repr=False)
class Runs(HoldsData):
    """Methods that were trained on the same silos, be it one."""

    finished: Finished
    folder: "TemporaryDirectory[str]"  # of the run, there for as long as this is
    code: Any = None  # what makes the model, where that is one's own

    @property
    def methods(self) -> list[str]:
        """The methods by their labels."""
        return list(self.finished.study.methods)

    @property
    def silos(self) -> list[str]:
        """The silos that were trained."""
        return list(dict.fromkeys(self.results["silo"]))

    @property
    def results(self) -> DataFrame:
        """Every measurement: method, seed, round, silo, split, measure, value."""
        return self.finished.results

    @property
    def summary(self) -> Mapping[str, Any]:
        """The scores of each method."""
        methods: Mapping[str, Any] = self.finished.summary["methods"]
        return methods

    def per_silo(self) -> DataFrame:
        """Silos by methods: the test score at the round that validation data pick for each method."""
        return DataFrame({name: scores["per_silo_picked"] for name, scores in self.summary.items()}).rename_axis("silo")

    def report(self, path: "str | Path") -> Path:
        """Write the report, one HTML file that opens offline."""
        plotly_objects()  # or an error that says how to get it
        with TemporaryDirectory() as made:
            write(self.finished, Path(made), "")
            return Path(shutil.copyfile(Path(made) / "report.html", path))

    def save(self, folder: "str | Path") -> Path:
        """Write the folder that `coterie run` writes: results, study, models, report."""
        out = Path(folder)
        made = claim(out)
        with leaving(out, made):
            for method in self.methods if self.finished.study.machine.models else ():
                shutil.copytree(self.models(method), out / "models" / method)
            write(self.finished, out, "")
        return out

    def models(self, method: str) -> Path:
        """Where the silos' models by a method are, of the first seed."""
        return Path(self.folder.name) / "run" / "models" / method

    def table(self) -> DataFrame:
        """The scores."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return str(self.table().to_html(float_format="{:.4g}".format))


class Comparison(Runs):
    """Several methods trained on the same silos; by a method's name its result."""

    def about(self) -> str:
        return f"{_many(self.methods, 'method')} on {_many(self.silos, 'silo')}: {', '.join(self.methods)}"

    def table(self) -> DataFrame:
        """Methods by scores, first that of the picked round: accuracies in percent, errors in the label's own unit."""
        rows = {name: {k: v for k, v in s.items() if k not in FOLDED} for name, s in self.summary.items()}
        return DataFrame.from_dict(rows, orient="index").rename_axis("method")

    def verdict(self) -> str:
        """Which method to take, and whether each silo is better off with it than alone, in plain words."""
        return "\n".join(compact(self.finished.summary["verdict"]))

    def gains(self) -> DataFrame:
        """Silos by what the verdict rests on: score and gain with their intervals, p, outcome, from whom."""
        return DataFrame(self.finished.summary["verdict"]["silos"])

    def __getitem__(self, method: str) -> "Result":
        if method not in self.methods:
            raise BadInput(f"no method '{method}' was trained; {nearest(method, self.methods)}")
        study = replace(self.finished.study, methods={method: self.finished.study.methods[method]})
        compared = ("verdict", "significance")
        summary = {key: value for key, value in self.finished.summary.items() if key not in compared}
        summary["methods"] = {method: self.summary[method]}
        traces = {name: trace for name, trace in self.finished.traces.items() if name == method}
        own = self.results[self.results["method"] == method].reset_index(drop=True)
        finished = replace(self.finished, study=study, summary=summary, traces=traces, results=own)
        return Result(finished, self.folder, self.code)


class Result(Runs):
    """One method trained; by a silo's name its model."""

    @property
    def method(self) -> str:
        """The method's label."""
        return self.methods[0]

    def about(self) -> str:
        rounds = range(self.finished.study.training.rounds)
        return f"{self.method} on {_many(self.silos, 'silo')}, {_many(rounds, 'round')}"

    def table(self) -> DataFrame:
        """Silos by measures, on test data at the round that validation data pick, the mean over seeds."""
        test = self.results[self.results["split"] == "test"]
        picked = {each["seed"]: each["picked_round"] for each in self.summary[self.method]["per_seed"]}
        late = test["measure"].str.endswith("_unseen")  # of silos that arrived after training
        judged = test[late | (test["round"] == test["seed"].map(picked))]
        return judged.pivot_table(index="silo", columns="measure", values="value", sort=False).rename_axis(columns=None)

    def __getitem__(self, silo: str) -> PersonalModel:
        if not self.finished.study.machine.models:
            raise BadInput("no models were kept (engine.models = false); train again and keep them")
        models = {silo_of(file): file for file in sorted(self.models(self.method).iterdir())}
        if silo not in models:
            raise BadInput(f"no silo '{silo}' was trained; {nearest(silo, models)}")
        return load_model(models[silo], self.code)

    def collaboration(self, round: int | None = None) -> DataFrame:
        """Who learns from whom after a round, or after the last: a row is a silo, a column the silo it learns from."""
        trace = self.finished.traces.get(self.method, {})
        if "collaboration" not in trace:
            raise BadInput(f"{self.method} has no weights between silos; fedamp, heurfedamp, fedacs, apple … have")
        rounds = trace["rounds"].tolist()
        if round is not None and round not in rounds:
            raise BadInput(f"round {round} was not measured; known: {', '.join(map(str, rounds))}")
        weights = np.asarray(trace["collaboration"][-1 if round is None else rounds.index(round)])
        names = trace["silos"].tolist()
        return DataFrame(weights, index=names, columns=names)


def _many(what: Sized, word: str) -> str:
    return f"{len(what)} {word}{'s' * (len(what) != 1)}"
