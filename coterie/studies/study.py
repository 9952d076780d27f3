"""A study: which data, model and methods to compare. TOML in, checked, every default written back."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from coterie import toml
from coterie.data import catalog
from coterie.data.own.gather import Holding
from coterie.engine.method import Method
from coterie.engine.training import Training
from coterie.errors import BadInput, nearest, shown
from coterie.measure.measures import AUTO as BY_LABELS
from coterie.measure.measures import MEASURES, measure_of
from coterie.methods import LEVELS, METHODS, WRAPPERS, make, name_of, written
from coterie.methods.stack import Stack
from coterie.methods.wrappers.spent import privacy_of
from coterie.models import AUTO, MODELS, build, split_parts
from coterie.models.code import is_code, load_code
from coterie.options import option, parse, resolved

DEFAULT = "digits"
OWN_TRAINING = (
    "local_epochs", "batch_size", "optimizer", "lr", "momentum", "weight_decay", "clip_gradient",
    "class_weight",
    "schedule", "schedule_at", "schedule_factor",
)  # fmt: skip
SEARCHED = ("lr", "optimizer", "weight_decay")  # what `auto` has a search find for each method, before the run
MOST_ROUNDS, PATIENCE = 200, 10  # what `rounds = "auto"` stands for
# Without a search: the gradient of a core model carries its weight in the mixture; a component sees a part of a sample.
RATES = {"apple": 0.25, "fedem": 0.15}  # by the method's registered name, whatever its label
TEXTS = ("about", "paper", "cell", "scale", "shows", "measured")
PUBLISHED = ("published", "published_decile", "published_cloud")
KEYS = (
    "name", *TEXTS, "seeds", "data", "model", "train", "measure", "engine", "secure", "methods", *PUBLISHED, "compared",
)  # fmt: skip
MEASURED = ("by", "positive")  # keys of `[measure]`, which training carries
SUBGROUPS = "subgroups"  # and one that the data carry
CELLS = ("cells", "small")  # what `select` turns into the keys above
COMPARED = ("bmta", "weighted", "unseen")
LARGEST = 1 << 22  # characters of a study
LONGEST_NAME = 300  # characters of a name that an error quotes
DEEPEST = 10  # tables within tables


@dataclass(frozen=True)
class Machine:
    """Where and how a study is computed; its results do not depend on it beyond rounding."""

    device: str = option("auto", "auto, cpu or cuda")
    rows: int | Literal["auto", "all"] = option("auto", "how many silos' models are trained in one call", low=1)
    precision: Literal["float32", "tf32", "bf16"] = option("float32", "of the arithmetic; weights stay float32")
    checkpoint_every: int | Literal["auto"] = option(
        "auto",
        "rounds between checkpoints, which a killed run may lose; auto: after each, or as often as costs little",
        low=1,
    )
    in_memory: float | Literal["auto"] = option(
        "auto", "gigabytes of samples held in memory, those beyond it in files; auto: a quarter of the memory", low=0
    )
    models: bool = option(True, "keep the silos' models (of the first seed), for coterie predict and export")


@dataclass(frozen=True)
class Study:
    """A checked study."""

    name: str
    about: str
    seeds: tuple[int, ...]
    data: dict[str, Any]  # with every default written back
    model: dict[str, Any]
    training: Training
    machine: Machine
    methods: dict[str, Method]
    own: dict[str, dict[str, Any]]  # what a method trains with instead of [train], by its label
    paper: str = ""
    cell: str = ""  # which of the study's cells, and at which scale
    scale: str = ""
    shows: str = ""  # what of the paper's findings can be seen at this scale
    measured: str = ""  # what a run of it took, and where
    published: dict[str, float] = field(default_factory=dict)  # what the paper reports (percent), by label
    published_decile: dict[str, float] = field(default_factory=dict)  # and of the bottom decile of the silos
    published_cloud: dict[str, float] = field(default_factory=dict)  # and of the model the server keeps
    compared: str = COMPARED[0]  # the score of ours that `published` is set beside
    auto: dict[str, tuple[str, ...]] = field(default_factory=dict)  # keys that are `auto`, by label; "": in [train]
    auto_seeds: bool = False  # whether more seeds are added where there is time for them
    # What no file can hold: silos given in Python, and a model given there or named on the command line.
    holdings: Sequence[Holding] | None = field(default=None, repr=False)
    code: Any = None

    def training_of(self, label: str) -> Training:
        """How a method trains: as all do, but for the keys of its own `train` table."""
        return replace(self.training, **self.own.get(label, {}))

    def searched(self, label: str) -> tuple[str, ...]:
        """The keys of a method's training that a search has yet to find; a rate that is given is one for sgd.

        A stack needs no search where each of its members is a method of the study too, or has its own rate.
        """
        method, keys = self.methods[label], self._open(label)
        if isinstance(method, Stack) and all("lr" in train or self._twin(each) for each, train in method.trained()):
            return ()
        return keys

    def _open(self, label: str) -> tuple[str, ...]:
        """The keys of a method's training that are `auto`."""
        own = self.own.get(label, {})
        auto = {*self.auto.get(label, ()), *(key for key in self.auto.get("", ()) if key not in own)}
        return tuple(key for key in SEARCHED if key in auto) if "lr" in auto else ()

    def _twin(self, member: Method) -> str | None:
        """The label of the same method in the study."""
        return next((label for label, method in self.methods.items() if method == member), None)

    def pinned(self) -> "Study":
        """The study whose stacks' members with a rate of their own train as it has it before any search.

        A rate goes with an optimiser: beside one that a search finds for another rate it would be wrong a hundredfold.
        """
        methods = dict(self.methods)
        for label, method in self.methods.items():
            if isinstance(method, Stack):
                training = self.training_of(label)
                before = {key: getattr(training, key) for key in self._open(label) if key != "lr"}
                methods[label] = method.with_training([before if "lr" in own else {} for _, own in method.trained()])
        return replace(self, methods=methods)

    def settled(self, own: dict[str, dict[str, Any]]) -> "Study":
        """The study with these values for what was `auto`; a stack's members take those of the same methods."""
        methods = dict(self.pinned().methods)
        for label, method in methods.items():
            if isinstance(method, Stack) and (keys := self._open(label)):
                twins = [own.get(self._twin(each) or "", {}) for each, _ in method.trained()]
                methods[label] = method.with_training([{k: t[k] for k in keys if k in t} for t in twins])
        return replace(self, own=own, auto={}, methods=methods)

    def fixed(self) -> "Study":
        """The study with fixed values wherever it is `auto`, and nothing left to search."""
        own = {label: self.own.get(label, {}) | self._fixed(label) for label in self.methods}
        rounds = "rounds" in self.auto.get("", ())
        training = replace(self.training, rounds=Training.rounds, patience=0) if rounds else self.training
        own = {label: table for label, table in own.items() if table}
        return replace(self.settled(own), auto_seeds=False, training=training)

    def _fixed(self, label: str) -> dict[str, Any]:
        rate = RATES.get(name_of(self.methods[label]))
        return {"lr": rate} if rate is not None and "lr" in self.searched(label) else {}

    @property
    def plugins(self) -> dict[str, str]:
        """The packages that bring what it names, and their versions; of a file of methods its checksum."""
        origins = [METHODS.origin(name_of(method)) for method in self.methods.values()]
        origins += [MODELS.origin(self.model["name"]), catalog.CATALOG.origin(self.data["name"])]
        origins += [MEASURES.origin(self.training.by)]
        return dict(origin for origin in origins if origin is not None)

    def as_table(self) -> dict[str, Any]:
        """The study with every default written back; reading it again gives the same study."""
        return {
            "name": self.name,
            **{key: text for key in TEXTS if (text := getattr(self, key))},
            **({"compared": self.compared} if self.compared != COMPARED[0] else {}),
            "seeds": AUTO if self.auto_seeds else list(self.seeds),
            "data": {key: value for key, value in self.data.items() if key != SUBGROUPS},
            "model": self.model,
            "train": self._written("", {k: v for k, v in resolved(self.training).items() if k not in MEASURED}),
            "measure": {key: getattr(self.training, key) for key in MEASURED}
            | ({SUBGROUPS: self.data[SUBGROUPS]} if self.data.get(SUBGROUPS) else {}),
            "engine": resolved(self.machine),
            "methods": {
                label: written(label, method) | ({"train": train} if train else {})
                for label, method in self.methods.items()
                for train in [self._written(label, self.own.get(label, {}))]
            },
            **{key: published for key in PUBLISHED if (published := getattr(self, key))},
        }

    def _written(self, label: str, train: dict[str, Any]) -> dict[str, Any]:
        return train | dict.fromkeys(self.auto.get(label, ()), AUTO)

    def as_toml(self) -> str:
        """The same as the text of a file."""
        return toml.dumps(self.as_table())


def built_in() -> dict[str, str]:
    """The studies that come with the package: name and text."""
    folder = resources.files("coterie.studies")
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return {f.name.removesuffix(".toml"): f.read_text("utf-8") for f in sorted(files, key=lambda f: f.name)}


def read(name: str | None) -> dict[str, Any]:
    """The table of a built-in study, or of a file."""
    name = DEFAULT if name is None else name
    studies = built_in()
    if name in studies:
        return loads(studies[name], name)
    path, called = Path(name), name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"
    try:
        if path.suffix != ".toml" and (not name or not path.exists()):
            raise BadInput(f"unknown study '{name}'; {nearest(name, studies)} (or give the path of a .toml file)")
        with path.open("rb") as file:
            text = file.read(LARGEST + 1).decode("utf-8")
    except OSError as error:
        raise BadInput(f"study {called}: {error.strerror or error}; give a readable .toml file") from None
    except ValueError:  # also of a name that no file can have
        raise BadInput(f"study {called}: not a text file; give a .toml file in UTF-8") from None
    if len(text) > LARGEST:
        raise BadInput(f"study {name}: more than {LARGEST} characters; give a .toml file")
    return loads(text, name)


def cells(table: Mapping[str, Any]) -> list[str]:
    """The names of a study's cells."""
    named = table.get("cells", {})
    if not isinstance(named, Mapping) or not named:
        raise BadInput("--data all: this study has no cells; leave it out")
    return list(named)


def select(table: Mapping[str, Any], cell: str | None = None, scale: str = "full") -> dict[str, Any]:
    """One cell of a study (a table of its paper has one per data set), at full scale or at that of a laptop."""
    cells, small = table.get("cells", {}), table.get("small", {})
    if not isinstance(cells, Mapping) or not isinstance(small, Mapping):
        raise BadInput("study: 'cells' and 'small' must be tables of what they change")
    chosen = {key: value for key, value in table.items() if key not in CELLS}
    if cell is not None and not cells:
        raise BadInput(f"--data {cell}: this study has no cells; leave it out; your own data go with --silos FOLDER")
    if cell is not None and cell not in cells:
        raise BadInput(f"--data {cell}: this study has no such cell; {nearest(cell, cells)}")
    if scale not in ("full", "small"):
        raise BadInput(f"--scale {scale}: expected full or small")
    smaller = [small]
    if cells:
        cell = next(iter(cells)) if cell is None else cell
        chosen = _merged(chosen, cells[cell]) | {"cell": cell}
        smaller.append(chosen.pop("small", {}))
    if scale == "small":
        for changes in smaller:  # what all cells have in common, then the cell's own
            chosen = _merged(chosen, changes)
        chosen["scale"] = scale
    return chosen


def _merged(table: Mapping[str, Any], changes: Any) -> dict[str, Any]:
    """A table with changes written over it, table by table."""
    if not isinstance(changes, Mapping):
        raise BadInput(f"study: a cell must be a table of what it changes, found {shown(changes)}")
    both = dict(table)
    for key, value in changes.items():
        old = both.get(key)
        inner = isinstance(old, Mapping) and isinstance(value, Mapping) and not _another(old, value)
        both[key] = _merged(both[key], value) if inner else value
    return both


def _another(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a table is about another model or data set, to which the options so far mean nothing."""
    return "name" in old and "name" in new and old["name"] != new["name"]


def check(table: Mapping[str, Any], methods: Sequence[str] | None = None, code: str | None = None) -> Study:
    """A table as a study; `methods` picks from its methods and may add registered ones with their defaults.

    `code` is the model that the command line named by its import: a study file itself never runs code.
    """
    for key in table:
        if key not in KEYS:
            raise BadInput(f"study: unknown key '{key}'; {nearest(str(key), KEYS)}")
    for key in ("data", "model", "train", "measure", "engine", "secure", "methods"):
        if not isinstance(table.get(key, {}), Mapping):
            raise BadInput(f"study: '{key}' must be a table, e.g. [{key}]")
    name, seeds = table.get("name", "study"), table.get("seeds", [0])
    auto_seeds, seeds = seeds == AUTO, [0] if seeds == AUTO else seeds
    texts = {key: table.get(key, "") for key in TEXTS}
    if not isinstance(name, str) or not name or not all(isinstance(text, str) for text in texts.values()):
        raise BadInput(f"study: name, {', '.join(TEXTS)} must be text")
    if not _whole(seeds):
        raise BadInput(
            f"study: 'seeds' must be a list of different whole numbers from 0 to 2^63 - 1 or auto, found {shown(seeds)}"
        )
    data, model = table.get("data", {}), table.get("model", {})
    for where, inner, key in (("data", data, "name"), ("data", data, "split"), ("model", model, "name")):
        if not isinstance(inner.get(key, ""), str):
            raise BadInput(f"[{where}] {key}: expected text, found {shown(inner[key])}")
    chosen: dict[str, Any] = dict(table.get("methods", {}))
    if methods is not None:
        chosen = {each: chosen.get(each, {}) for each in methods}
    measured = {key: value for key, value in table.get("measure", {}).items() if key != SUBGROUPS}
    training, common = _training(table.get("train", {}), measured)
    own_tables = catalog.comes_as_tables(data.get("name", ""))
    if SUBGROUPS in table.get("measure", {}):
        if not own_tables:
            raise BadInput("[measure] subgroups: are columns of your own tables; leave them out")
        data = {**data, SUBGROUPS: table["measure"][SUBGROUPS]}
    if "test" not in training.measure:
        raise BadInput(
            f"[train] measure: {list(training.measure)} has no 'test', by which methods are compared; add it"
        )
    if not chosen:
        raise BadInput("study: no methods to run; add a [methods.NAME] table or --methods NAME")
    for label in chosen:
        check_label(label)
    own = {
        label: _own_training(options["train"], f"[methods.{label}.train]", training)
        for label, options in chosen.items()
        if isinstance(options, Mapping) and "train" in options
    }
    compared = table.get("compared", COMPARED[0])
    if compared not in COMPARED:
        raise BadInput(f"study: 'compared' is the score to set beside published ones: {', '.join(COMPARED)}")
    made = _secured(
        {label: make(label, _without_train(options)) for label, options in chosen.items()}, table.get("secure", {})
    )
    if any((privacy := privacy_of(method)) is not None and privacy.level == "record" for method in made.values()):
        training = replace(training, round_samples=0)  # its batches are drawn by chance, of all samples
    published: dict[str, Any] = {key: _published(table, key, chosen) for key in PUBLISHED}
    return Study(
        name=name,
        seeds=tuple(seeds),
        auto_seeds=auto_seeds,
        data=catalog.resolved(data.get("name", "digits"), data),
        model=_model(model, code, AUTO if own_tables else "mlp"),
        training=training,
        machine=parse(Machine, table.get("engine", {}), "[engine]"),
        methods=made,
        own={label: table for label, (table, _) in own.items() if table},
        auto={label: keys for label, keys in {"": common, **{k: keys for k, (_, keys) in own.items()}}.items() if keys},
        compared=compared,
        code=None if code is None else load_code(code),
        **texts,
        **published,
    )


def _secured(methods: dict[str, Method], table: Mapping[str, Any]) -> dict[str, Method]:
    """The methods at the level of `[secure]`: all of whose silos anything leaves, but for those that have one."""
    if not table:
        return methods
    level = table.get("level")
    if level not in LEVELS:
        raise BadInput(f"[secure] level: expected {' or '.join(LEVELS)}, found {shown(level)}")
    schema, wrap = WRAPPERS[level]
    options = parse(schema, {key: value for key, value in table.items() if key != "level"}, "[secure]")
    levels = tuple(WRAPPERS[each][1] for each in LEVELS)
    return {
        label: method if isinstance(method, levels) or not fields(method.up) else wrap(method, options)
        for label, method in methods.items()
    }


def _model(table: Mapping[str, Any], code: str | None, default: str) -> dict[str, Any]:
    """The `[model]` table with its defaults: nothing is built before the data are there."""
    name = table.get("name", default)
    if is_code(name):
        if name != code:
            raise BadInput(f"[model] name: a study runs no code; give --model {name} on the command line")
        own, parts = split_parts(table)
        for key in own.keys() - {"name"}:
            raise BadInput(f"[model] {key}: not known of {name}, which is your own code; remove it")
        return {"name": name} | parts.as_table()
    return build({"name": name, **table}, shape=(), outputs=0)[1]


def _training(table: Mapping[str, Any], measured: Mapping[str, Any]) -> tuple[Training, tuple[str, ...]]:
    """The `[train]` table with what `[measure]` says, and which of its keys are `auto`."""
    for key in MEASURED:
        if key in table:
            raise BadInput(f"[train] unknown key '{key}'; it is a key of [measure]")
    for key in measured:
        if key not in MEASURED:
            raise BadInput(f"[measure] unknown key '{key}'; {nearest(str(key), (*MEASURED, SUBGROUPS))}")
    where = "[train]" if not measured else "[train] and [measure]"
    training, auto = read_training({**table, **measured}, where)
    if training.by != BY_LABELS:
        measure_of(training.by)
    return training, auto


def check_label(label: str) -> None:
    """Refuse a label that could not name a file of the results, or that names one elsewhere."""
    if not label.isprintable() or label.strip(" .") != label or not label or {*label} & {*"/\\"} or len(label) > 60:
        raise BadInput(f"[methods] {shown(label)}: a label is up to 60 printable characters, none of them / or \\")


def _published(study: Mapping[str, Any], key: str, methods: Collection[str]) -> dict[str, float]:
    """What a paper has of the methods that are run."""
    table = study.get(key, {})
    if not isinstance(table, Mapping):
        raise BadInput(f"study: '{key}' must be a table of percentages by method, found {shown(table)}")
    for label, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            raise BadInput(f"[{key}] {label}: expected a percentage, found {shown(value)}")
    return {str(label): float(value) for label, value in table.items() if label in methods}


def _without_train(table: Any) -> Any:
    return {key: value for key, value in table.items() if key != "train"} if isinstance(table, Mapping) else table


def read_training(table: Mapping[str, Any], where: str) -> tuple[Training, tuple[str, ...]]:
    """A `train` table, and which of its keys are `auto`."""
    auto = tuple(key for key in ("rounds", *SEARCHED) if table.get(key) == AUTO)
    given = {key: value for key, value in table.items() if key not in auto}
    most = {"rounds": MOST_ROUNDS, "patience": PATIENCE} if "rounds" in auto else {}
    return parse(Training, {**most, **given}, where), auto


def _own_training(table: Any, where: str, training: Training) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A method's own `train` table, checked: what local training does, not who takes part or what is measured.

    And which of its keys are `auto`.
    """
    if not isinstance(table, Mapping):
        raise BadInput(f"{where}: expected a table, found {shown(table)}")
    for key in table:
        if key not in OWN_TRAINING:
            raise BadInput(f"{where}: '{key}' cannot differ between methods; {nearest(str(key), OWN_TRAINING)}")
    checked, auto = read_training(resolved(training) | dict(table), where)
    return {key: getattr(checked, key) for key in table if key not in auto}, auto


def override(table: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A table with `key.path=value` assignments applied; a value is TOML, or else plain text."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys) or len(keys) > DEEPEST:
            raise BadInput(f"--set {assignment[:200]}: expected key.path=value, e.g. train.lr=0.1")
        try:
            value = loads(f"value = {text}", "--set")["value"]
        except BadInput:
            value = text
        table = _assigned(table, keys, value, assignment)
    return table


def _assigned(table: dict[str, Any], keys: list[str], value: Any, assignment: str) -> dict[str, Any]:
    first, *rest = keys
    if not rest:
        return {**table, first: value}
    inner = table.get(first, {})
    if not isinstance(inner, dict):
        raise BadInput(f"--set {assignment}: '{first}' is a value, not a table")
    if keys == ["model", "name"] and _another(inner, {"name": value}):
        inner = {}
    return {**table, first: _assigned(inner, rest, value, assignment)}


def loads(text: str, name: str) -> dict[str, Any]:
    """The table of a study's text; `name` is what errors call it."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a plain ValueError
        raise BadInput(f"study {name}: not valid TOML: {error}") from None
    if _deeper(table, DEEPEST):
        raise BadInput(f"study {name}: more than {DEEPEST} tables or lists within one another; no key is so deep")
    return table


def _deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(each, levels - 1) for each in inner)


def _whole(seeds: Any) -> bool:
    return (
        isinstance(seeds, list)
        and len(seeds) > 0
        and all(isinstance(s, int) and not isinstance(s, bool) and 0 <= s < 2**63 for s in seeds)
        and len(set(seeds)) == len(seeds)
    )
