"""The Python API: silos and a model are a federation, methods train on it, and what comes out is pandas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pandas import DataFrame
from rich.console import Console

from coterie import toml
from coterie.data.own.gather import Holding, check_drop, from_dataset, from_frame, gather
from coterie.data.own.ready import OwnData
from coterie.data.silo import HoldsData, named
from coterie.engine.method import Method
from coterie.engine.training import Training
from coterie.errors import BadInput, Stopped, nearest
from coterie.errors import shown as quoted
from coterie.methods import METHODS, given, innermost, name_of
from coterie.models import AUTO, build
from coterie.models.code import code_name
from coterie.options import check, describe, keywords, parse, resolved
from coterie.result import Comparison, Result, load_result
from coterie.run import experiment
from coterie.run.assembly import Assembly
from coterie.run.progress import shown
from coterie.studies import study as studies
from coterie.studies.own import OWN
from coterie.studies.study import Machine, Study


@dataclass(frozen=True, repr=False)
class Silos(HoldsData):
    """What every silo holds, and how it is to be read."""

    holdings: Sequence[Holding]
    options: OwnData
    name: str

    @property
    def names(self) -> list[str]:
        """The silos."""
        return [holding.name for holding in self.holdings]

    def about(self) -> str:
        return named(self.names) + (f"; label {self.options.label!r}" if self.options.label else "")


@keywords("silos")
def silos(
    source: "str | Path | Mapping[str, Any]",
    label: str = "",
    *,
    task: Literal["auto", "classification", "regression"] = "auto",
    drop: Sequence[str] = (),
    text: Sequence[str] = (),
    resize: int = 0,
    standardize: Literal["federation", "silo"] = "federation",
    test_share: float = 0.2,
    validation: float = 0.2,
    group: str = "",
    time: str = "",
    split_column: str = "",
    subgroups: Sequence[str] = (),
    incumbent: "str | Mapping[str, Any]" = "",
) -> Silos:
    """Your silos: a folder with one file or folder each, or a dict of name and DataFrame, (x, y) or Dataset.

    Of tables, `group` is the column whose values stay on one side of a split (a patient), `time` the one by which past
    rows train and the last ones test, `split_column` the one that holds train, validation or test for each row;
    `subgroups` are those by whose levels measures are taken too. `incumbent` is what silos use today, a candidate of
    `stack`: a column of predictions, an ONNX file ({silo} stands for a silo's name), or by silo an object with
    predict_proba or predict.
    """
    table: dict[str, Any] = {"label": label, "task": task, "drop": list(drop), "text": list(text), "resize": resize}
    table |= {"standardize": standardize, "test_share": test_share, "validation": validation}
    table |= {"group": group, "time": time, "split_column": split_column, "subgroups": list(subgroups)}
    objects = {} if isinstance(incumbent, str) else dict(incumbent)
    table["incumbent"] = incumbent if isinstance(incumbent, str) else ""
    if isinstance(source, Mapping):
        options = parse(OwnData, table, "silos")
        holdings = [_holding(name, held, options) for name, held in source.items()]
        check_drop(holdings, options.drop)
        return Silos(_with_objects(holdings, objects), options, "silos")
    folder = Path(source).expanduser()
    options = parse(OwnData, table | {"path": str(source)}, "silos")
    holdings = gather(folder, label, options.drop, options.columns, options.resize)
    return Silos(_with_objects(holdings, objects), options, folder.resolve().name)


def method_table() -> DataFrame:
    """The methods: what each does, its paper, and the class that `coterie` has it under."""
    rows = [(name, kind.__name__, kind.summary, kind.paper) for name, kind in METHODS.items()]
    return DataFrame(rows, columns=["method", "class", "summary", "paper"]).set_index("method")


@dataclass(frozen=True, repr=False)
class Experiment:
    """A study, checked and ready to run."""

    study: Study

    def __repr__(self) -> str:
        about = ", ".join(part for part in (self.study.name, self.study.cell, self.study.scale) if part)
        rounds, seeds = self.study.training.rounds, len(self.study.seeds)
        size = f"{rounds} round{'s' * (rounds != 1)}, {seeds} seed{'s' * (seeds != 1)}"
        return f"Experiment({about}: {', '.join(self.study.methods)}; {size})"

    @property
    def toml(self) -> str:
        """The study as the text of a file, with every default written back."""
        return self.study.as_toml()

    def run(self, out: "str | Path | None" = None, *, quiet: bool = False) -> Comparison:
        """Run it as `coterie run` does, into the folder `out`; without one the result alone keeps what was made."""
        return _run(self.study, None if out is None else Path(out), quiet)


@keywords("study")
def study(
    name: "str | Path",
    *,
    data: str | None = None,
    scale: Literal["full", "small"] = "full",
    methods: Sequence[str] | None = None,
    set: Mapping[str, Any] | None = None,
) -> Experiment:
    """A study that comes with Coterie, or a .toml file: one cell of it, some of its methods, and other values.

    `data` names the cell, none: the first; `set` is what to change, e.g. {"train.rounds": 5}.
    """
    if methods is not None and (isinstance(methods, str) or not all(isinstance(each, str) for each in methods)):
        raise BadInput(f"methods: expected names, e.g. ['fedamp'], found {quoted(methods)}")
    changes = [f"{key}={_as_toml(key, value)}" for key, value in (set or {}).items()]
    table = studies.select(studies.read(str(name)), data, scale)
    return Experiment(studies.check(studies.override(table, changes), methods))


def _as_toml(key: str, value: Any) -> str:
    try:
        return toml.value(value)
    except TypeError:
        raise BadInput(f"set {key}: expected a value as in a study file, found {quoted(value)}") from None


def _of_the_method(key: str, arguments: Mapping[str, Any]) -> None:
    """Refuse an option of a method where those of the training are given."""
    methods = [arguments["method"]] if "method" in arguments else arguments.get("methods") or list(OWN["methods"])
    if isinstance(methods, str) or not isinstance(methods, Sequence | Mapping):
        return  # which is refused as such
    for each in methods.values() if isinstance(methods, Mapping) else methods:
        kind = type(innermost(given(each)))
        if key in (option.name for option in describe(kind)):
            place = "coterie." * kind.__module__.startswith("coterie.")
            value = quoted(arguments["training"][key])
            raise BadInput(f"{key} is an option of the method: give {place}{kind.__name__}({key}={value})")


class Federation(HoldsData):
    """Silos and the model that each of them wants: train a method on it, or compare several."""

    @keywords("Federation")
    def __init__(
        self,
        silos: Silos,
        model: Any = None,
        *,
        seeds: Sequence[int] | Literal["auto"] = "auto",
        device: str = "auto",
        rows: int | str = "auto",
        precision: str = "float32",
    ) -> None:
        """`model`: None (the data choose), a name, or any nn.Module: its class, a function that makes it, or itself.

        `seeds`: "auto" is three of them where rates are searched for and all takes less than a minute, else one.
        """
        if not isinstance(silos, Silos):
            raise BadInput(f"Federation silos: a {type(silos).__name__}; give coterie.silos(…), which takes that")
        if isinstance(seeds, str) and seeds != AUTO:
            raise BadInput(f"Federation seeds: expected whole numbers or auto, found {quoted(seeds)}")
        code = None if model is None or isinstance(model, str | Mapping) else model
        table = {"name": model} if isinstance(model, str) else dict(model or {"name": AUTO}) if code is None else {}
        machine = {"device": device, "rows": rows, "precision": precision}
        self._study = Study(
            name=silos.name,
            about="",
            seeds=(0,) if isinstance(seeds, str) else tuple(seeds),
            auto_seeds=isinstance(seeds, str),
            data={"name": "own" if silos.options.path else "given in Python", **resolved(silos.options)},
            model=build(table, (), 0)[1] if code is None else {"name": code_name(code)},
            training=studies.read_training(OWN["train"], "training")[0],
            machine=parse(Machine, machine, "Federation"),
            methods={},
            own={},
            holdings=silos.holdings,
            code=code,
        )
        # Whatever cannot work is found here, before any training.
        self._assembly = experiment.prepare(self._study, self._study.seeds[0])[1]

    def about(self) -> str:
        return f"{self._assembly.about()}; model {self._assembly.table['name']}"

    @property
    def differences(self) -> DataFrame:
        """How the silos' tables differ, column by column."""
        found = [(each.column, each.silo, each.what) for each in self._assembly.differences]
        return DataFrame(found, columns=["column", "silo", "what"])

    def table(self) -> DataFrame:
        """The silos: how many samples each has to train, validate and test on."""
        counts = {s.name: (len(s.train), len(s.validation), len(s.test)) for s in self._assembly.silos}
        return DataFrame.from_dict(counts, orient="index", columns=["train", "validation", "test"]).rename_axis("silo")

    @keywords("train", Training, OWN["train"], _of_the_method)
    def train(
        self, method: Method | str, rounds: int | Literal["auto"] = "auto", *, quiet: bool = False, **training: Any
    ) -> Result:
        """Train a method; `training` are options of the training, e.g. lr=0.1, local_epochs=2, batch_size=32."""
        comparison = self.compare([method], rounds, quiet=quiet, **training)
        return comparison[comparison.methods[0]]

    @keywords("compare", Training, OWN["train"], _of_the_method)
    def compare(
        self,
        methods: "Sequence[Method | str] | Mapping[str, Method] | None" = None,
        rounds: int | Literal["auto"] = "auto",
        *,
        quiet: bool = False,
        **training: Any,
    ) -> Comparison:
        """Train several methods on the same silos; without any named, a set that suits silos of one's own.

        `rounds`: "auto" ends a method when validation data see nothing better. `training` are options of the training;
        what is "auto" is searched for, for each method, on validation data before it trains:
        """
        chosen = _labelled(list(OWN["methods"]) if methods is None else methods)
        common, auto = studies.read_training({**OWN["train"], **training, "rounds": rounds}, "training")
        study = replace(self._study, methods=chosen, training=common, auto={"": auto} if auto else {})
        return _run(study, None, quiet, self._assembly)


def _run(study: Study, out: Path | None, quiet: bool, like: Assembly | None = None) -> Comparison:
    """Run a study into a folder, or without one into a folder that stays for as long as the result does."""
    if out is None:
        kept = TemporaryDirectory(prefix="coterie-")
        try:
            return replace(_run(study, Path(kept.name) / "run", quiet, like), kept=kept)
        except Stopped:  # whose message names a folder to go on in; this one is gone
            raise KeyboardInterrupt from None
    console = Console()
    with shown(study, console, quiet) as watch:
        say = (lambda line: None) if quiet else partial(console.print, markup=False, highlight=False)
        experiment.run_into(study, out, "", watch, say, like)
    return load_result(out, study.code)


def _labelled(methods: "Sequence[Method | str] | Mapping[str, Method]") -> dict[str, Method]:
    """Methods by their names; of two of one name the second is numbered."""
    if isinstance(methods, Mapping):
        return {str(label): check(method, f"{label}:") for label, method in methods.items()}
    made: dict[str, Method] = {}
    for each in methods:
        method = given(each)
        name = name_of(method).rpartition(":")[2]
        same = sum(label == name or label.startswith(f"{name}-") for label in made) if name in made else 0
        made[f"{name}-{same + 1}" if same else name] = check(method, f"{name}:")
    if not made:
        raise BadInput("methods: none to train; give one such as coterie.FedAMP()")
    return made


def _with_objects(holdings: Sequence[Holding], objects: Mapping[str, Any]) -> list[Holding]:
    """The silos with their own models."""
    names = [holding.name for holding in holdings]
    for name in objects:
        if name not in names:
            raise BadInput(f"incumbent: there is no silo '{name}'; {nearest(name, names)}")
    return [replace(holding, incumbent=objects.get(holding.name)) for holding in holdings]


def _holding(name: str, held: Any, options: OwnData) -> Holding:
    if isinstance(held, DataFrame):
        return from_frame(str(name), held, options.label, options.drop, f"silo '{name}'", options.columns)
    return from_dataset(str(name), held)
