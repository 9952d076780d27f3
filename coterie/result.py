"""What training gives: scores as pandas, each silo's model, the report, and the folder that `coterie run` writes."""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pandas import DataFrame

from coterie.data.silo import HoldsData
from coterie.errors import BadInput, nearest
from coterie.measure.verdict_words import compact
from coterie.personal.file import about_of, load_model
from coterie.personal.model import PersonalModel
from coterie.report.canvas import Figure
from coterie.report.page import render
from coterie.report.plots import figure_of, weights_of
from coterie.runs.folder import claim, cleanup_on_error, go_on
from coterie.runs.part import copy, of_method
from coterie.runs.read import Run, read_run
from coterie.studies.study import check_label

PER_SILO = ("per_silo", "per_silo_picked", "per_silo_cloud", "per_silo_unseen")
FOLDED = ("measures", "temperatures", "thresholds", *PER_SILO, "per_seed")  # tables of their own


def load_result(folder: "str | Path", model: Any = None) -> "Comparison":
    """What `coterie run` or `save` left in a folder; `model` makes the module where it was one's own code."""
    run = read_run(Path(folder))
    if not run.finished:
        raise BadInput(f"{folder}: this run has not finished; {go_on(Path(folder))}")
    for label in run.methods:
        check_label(label)
    return Comparison(run, Path(folder), model)


@dataclass(frozen=True, repr=False)
class Runs(HoldsData):
    """Methods that were trained on the same silos, be it one."""

    run: Run
    folder: Path  # of the run
    code: Any = None  # what makes the model, where that is one's own
    kept: "TemporaryDirectory[str] | None" = None  # where the folder is, if it goes when this does

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def _keys(self) -> list[str]:
        """What is in it by name."""
        raise NotImplementedError

    @property
    def methods(self) -> list[str]:
        """The methods by their labels."""
        return list(self.run.methods)

    @property
    def silos(self) -> list[str]:
        """The silos that were trained; those that arrived afterwards are not among them."""
        trained = ~self.results["measure"].str.endswith("_unseen")
        return list(dict.fromkeys(self.results.loc[trained, "silo"]))

    @property
    def results(self) -> DataFrame:
        """Every measurement: method, seed, round, silo, split, measure, value."""
        return self.run.results

    @property
    def summary(self) -> Mapping[str, Any]:
        """The scores of each method."""
        return self.run.methods

    def per_silo(self) -> DataFrame:
        """Silos by methods: the test score at the round that validation data pick for each method."""
        return DataFrame({name: scores["per_silo_picked"] for name, scores in self.summary.items()}).rename_axis("silo")

    def report(self, path: "str | Path") -> Path:
        """Write the report, one HTML file that opens offline."""
        render(self.run, Path(path))
        return Path(path)

    def plot(self, what: str = "rounds") -> Figure:
        """A figure of the report, as plotly draws it in a notebook.

        `what`: "rounds" (the score by round), "scores" (of the methods), "silos" (every silo's score), "gains" (over
        training alone, of a comparison), or "collaboration" (who learns from whom, of one method).
        """
        return figure_of(self.run, what)

    def save(self, folder: "str | Path") -> Path:
        """Write the folder that `coterie run` writes: results, study, models, report."""
        out = Path(folder)
        made = claim(out)
        with cleanup_on_error(out, made):
            copy(self.run, self.folder, out)
            if find_spec("plotly"):
                render(replace(self.run, folder=out), out / "report.html")
        return out

    def models(self, method: str) -> Path:
        """Where the silos' models by a method are, of the first seed."""
        return self.folder / "models" / method

    def table(self) -> DataFrame:
        """The scores."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return str(self.table().to_html(float_format="{:.4g}".format))


class Comparison(Runs):
    """Several methods trained on the same silos; by a method's name its result."""

    _keys = Runs.methods

    @classmethod
    def load(cls, folder: "str | Path", model: Any = None) -> "Comparison":
        """The methods in the folder of a run, as `load_result` has them."""
        found = load_result(folder, model)
        if len(found) == 1:
            raise BadInput(f"{folder}: holds one method alone, {found.methods[0]}; take Result.load")
        return found

    def about(self) -> str:
        return f"{_many(self.methods, 'method')} on {_many(self.silos, 'silo')}: {', '.join(self.methods)}"

    def table(self) -> DataFrame:
        """Methods by scores, first that of the picked round: accuracies in percent, errors in the label's own unit."""
        rows = {name: {k: v for k, v in s.items() if k not in FOLDED} for name, s in self.summary.items()}
        return DataFrame.from_dict(rows, orient="index").rename_axis("method")

    def verdict(self) -> str:
        """Which method to take, and whether each silo is better off with it than alone, in plain words."""
        return "\n".join(compact(self._verdict()))

    def gains(self) -> DataFrame:
        """Silos by what the verdict rests on: score and gain with their intervals, p, outcome, from whom."""
        return DataFrame(self._verdict()["silos"])

    def _verdict(self) -> Mapping[str, Any]:
        if self.run.verdict is None:
            raise BadInput("one method alone has no verdict; compare several")
        return self.run.verdict

    def __getitem__(self, method: str) -> "Result":
        if method not in self.methods:
            raise BadInput(f"no method '{method}' was trained; {nearest(method, self.methods)}")
        return Result(of_method(self.run, method), self.folder, self.code, self.kept)


class Result(Runs):
    """One method trained; by a silo's name its model."""

    _keys = Runs.silos

    @classmethod
    def load(cls, folder: "str | Path", model: Any = None) -> "Result":
        """The one method in the folder of a run; `model` makes the module where it was one's own code."""
        found = load_result(folder, model)
        if len(found) > 1:
            held = ", ".join(found.methods)
            raise BadInput(
                f"{folder}: holds {len(found)} methods, {held}; take Comparison.load, and of it one by its name"
            )
        return found[found.methods[0]]

    @property
    def method(self) -> str:
        """The method's label."""
        return self.methods[0]

    def about(self) -> str:
        rounds = range(self.run.study["train"]["rounds"])
        return f"{self.method} on {_many(self.silos, 'silo')}, {_many(rounds, 'round')}"

    def table(self) -> DataFrame:
        """Silos by measures, on test data at the round that validation data pick, the mean over seeds."""
        test = self.results[self.results["split"] == "test"]
        picked = {each["seed"]: each["picked_round"] for each in self.summary[self.method]["per_seed"]}
        of_newcomers = test["measure"].str.endswith("_unseen")  # who arrived after training
        judged = test[of_newcomers | (test["round"] == test["seed"].map(picked))]
        return judged.pivot_table(index="silo", columns="measure", values="value", sort=False).rename_axis(columns=None)

    def __getitem__(self, silo: str) -> PersonalModel:
        models = {about_of(file)["silo"]: file for file in sorted(self.models(self.method).glob("*.safetensors"))}
        if not models:
            raise BadInput("no models were kept (engine.models = false); train again and keep them")
        if silo not in models:
            raise BadInput(f"no silo '{silo}' was trained; {nearest(silo, models)}")
        return load_model(models[silo], self.code)

    def collaboration(self, round: int | None = None) -> DataFrame:
        """Who learns from whom after a round, or after the last: a row is a silo, a column the silo it learns from."""
        trace = weights_of(self.run, self.method)
        rounds = trace["rounds"].tolist()
        if round is not None and round not in rounds:
            raise BadInput(f"round {round} was not measured; known: {', '.join(map(str, rounds))}")
        weights = np.asarray(trace["collaboration"][-1 if round is None else rounds.index(round)])
        names = trace["silos"].tolist()
        return DataFrame(weights, index=names, columns=names)


def _many(what: Sized, word: str) -> str:
    return f"{len(what)} {word}{'s' * (len(what) != 1)}"
