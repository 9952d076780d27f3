"""The data sets Coterie knows, and how a study's `[data]` table becomes silos."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from coterie.data import sets
from coterie.data.silo import Pool, Silo, check_finite, check_silos, deal
from coterie.data.splits import SPLITS, split
from coterie.data.synthetic import Synthetic, generate
from coterie.errors import BadInput, nearest
from coterie.keys import generator
from coterie.options import Option, describe, option, parse
from coterie.options import resolved as written

RECIPE = {"silos", "groups", "members", "sizes", "dominating"}  # what a preset of `groups` stands for
VALIDATION = {
    "pool": "validation samples were drawn from samples no silo trains on, so training sizes are as asked",
    "train": "validation samples were cut from the training samples, so training sizes are smaller than asked",
    "none": "no validation samples",
}


@dataclass(frozen=True)
class Embedded:
    """A set that needs no files."""


@dataclass(frozen=True)
class OnDisk:
    """A set the user has the files of."""

    path: str = option("", "the folder of its official files, or the .npz archive")


@dataclass(frozen=True)
class Entry:
    """What is known about a data set."""

    title: str
    classes: int | None  # None: as the file says
    shape: tuple[int, ...]  # of one sample; empty: as the file says
    size: int | None  # samples in all
    licence: str
    source: str
    options: type[Any] = OnDisk
    pool: Callable[[str], Pool] | None = None  # None: generated silo by silo
    split: str = "iid"
    split_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Federated:
    """A federation's data, ready to train on."""

    silos: list[Silo]
    classes: int  # 0 for regression
    name: str
    note: str
    groups: list[int]  # of each silo


@dataclass(frozen=True)
class Plan:
    """A `[data]` table, checked."""

    name: str
    own: Any
    split: str | None
    split_options: Any


_IDX = "four official IDX files in `path`, gzipped or not"
_MED = "the official MedMNIST .npz in `path`"
_BIN = "the official binary files in `path`, or an .npz archive"

CATALOG: dict[str, Entry] = {
    "digits": Entry(
        "Optical recognition of handwritten digits", 10, (1, 8, 8), 1797, "CC BY 4.0", "comes with scikit-learn",
        Embedded, lambda _: sets.digits(), "groups",
        {"silos": 20, "groups": 5, "sizes": (40, 35, 30, 25, 20), "dominating": "even", "test": 30},
    ),
    "mnist": Entry(
        "MNIST", 10, (1, 28, 28), 70000, "CC BY-SA 3.0", _IDX,
        OnDisk, lambda path: sets.idx("mnist", path, 10), "groups", {"preset": "amp-mnist"},
    ),
    "fashion-mnist": Entry(
        "Fashion-MNIST", 10, (1, 28, 28), 70000, "MIT", f"{_IDX}, or Debian's dataset-fashion-mnist",
        OnDisk, lambda path: sets.idx("fashion-mnist", path, 10), "groups", {"preset": "amp-fmnist"},
    ),
    "emnist": Entry(
        "EMNIST by-class", 62, (1, 28, 28), 814255, "not stated; derived from NIST SD 19", _IDX, OnDisk,
        lambda path: sets.idx("emnist", path, 62, ("emnist-byclass-train", "emnist-byclass-test")),
        "groups", {"preset": "amp-emnist"},
    ),
    "cifar10": Entry(
        "CIFAR-10", 10, (3, 32, 32), 60000, "not stated; research use", _BIN,
        OnDisk, lambda path: sets.cifar("cifar10", path, 10), "dirichlet", {"silos": 80, "alpha": 0.4},
    ),
    "cifar100": Entry(
        "CIFAR-100", 100, (3, 32, 32), 60000, "not stated; research use", _BIN,
        OnDisk, lambda path: sets.cifar("cifar100", path, 100), "groups", {"preset": "amp-cifar100"},
    ),
    "organamnist": Entry(
        "OrganAMNIST (MedMNIST v2)", 11, (1, 28, 28), 58830, "CC BY 4.0", _MED,
        OnDisk, lambda path: sets.npz("organamnist", path, 11), "shards",
    ),
    "pathmnist": Entry(
        "PathMNIST (MedMNIST v2)", 9, (3, 28, 28), 107180, "CC BY 4.0", _MED,
        OnDisk, lambda path: sets.npz("pathmnist", path, 9), "shards",
    ),
    "synthetic": Entry(
        "Mixture of linear components (Marfoq et al. 2021)", 2, (150,), None, "generated", "generated from the seed",
        Synthetic,
    ),
    "npz": Entry(
        "Your own arrays", None, (), None, "yours", "an .npz archive: x and y, or x_train … y_test",
        OnDisk, lambda path: sets.npz("npz", path),
    ),
}  # fmt: skip


def load(name: str, options: Mapping[str, Any], seed: int, where: str = "[data]") -> Federated:
    """The silos a `[data]` table describes."""
    plan = _plan(name, options, where)
    entry, rng = CATALOG[name], generator(seed, "split", name)
    if entry.pool is None:
        silos, _ = generate(plan.own, rng)
        federated = Federated(silos, 2, name, "generated; every sample has its label", [0] * len(silos))
    else:
        pool = entry.pool(getattr(plan.own, "path", ""))
        if entry.shape and pool.x.shape[1:] != entry.shape:
            raise BadInput(f"{where} {name}: samples are {pool.x.shape[1:]}, expected {entry.shape}; check `path`")
        check_finite(pool.x, f"{where} {name} inputs")  # here, where a sample's number is its place in the file
        result = split(pool, plan.split_options, rng)
        groups = [share.group for share in result.shares]
        federated = Federated(deal(pool, result.shares), pool.classes, name, VALIDATION[result.validation_from], groups)
    check_silos(federated.silos, federated.classes)
    return federated


def resolved(name: str, options: Mapping[str, Any], where: str = "[data]") -> dict[str, Any]:
    """The `[data]` table with every default written back; loading it gives the same silos."""
    plan = _plan(name, options, where)
    table = {"name": plan.name, **written(plan.own)}
    if plan.split is not None:
        table |= {"split": plan.split, **written(plan.split_options)}
    return {key: _lists(value) for key, value in table.items()}


def describe_options(name: str, split_name: str | None = None) -> list[Option]:
    """The options a set's `[data]` table takes with this split, or with its default one."""
    entry = CATALOG[name]
    own = describe(entry.options)
    return own if entry.pool is None else own + describe(SPLITS[split_name or entry.split][0])


def _plan(name: str, options: Mapping[str, Any], where: str) -> Plan:
    if name not in CATALOG:
        raise BadInput(f"{where} name: unknown data set '{name}'; {nearest(name, CATALOG)}")
    if options.get("name", name) != name:
        raise BadInput(f"{where} name: '{options['name']}' and '{name}' are both asked for; give one")
    entry = CATALOG[name]
    table = {key: value for key, value in options.items() if key != "name"}
    if entry.pool is None:
        if "split" in table:
            raise BadInput(f"{where} split: {name} is generated silo by silo and takes no split; remove it")
        return Plan(name, parse(entry.options, table, where), None, None)

    rule = table.pop("split", entry.split)
    if rule not in SPLITS:
        raise BadInput(f"{where} split: unknown split {rule!r}; {nearest(str(rule), SPLITS)}")
    schema = SPLITS[rule][0]
    own, of_split = _keys(entry.options), _keys(schema)
    for key in table:
        if key not in own | of_split:
            known = nearest(str(key), own | of_split | {"name", "split"})
            raise BadInput(f"{where}: unknown key '{key}' for {name} with split = \"{rule}\"; {known}")
    chosen = {key: value for key, value in table.items() if key in of_split}
    if rule == entry.split:
        chosen = _defaults(entry.split_options, chosen) | chosen
    return Plan(
        name,
        parse(entry.options, {key: value for key, value in table.items() if key in own}, where),
        rule,
        parse(schema, chosen, where),
    )


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
