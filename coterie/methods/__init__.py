"""The methods by name: one that comes with Coterie is one file and one line here."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from coterie.engine.method import Method, Model, Roster
from coterie.errors import BadInput, nearest, shown
from coterie.methods.wrappers.blind import Blind, WithBlind
from coterie.methods.wrappers.clip import Clipping, WithClipping
from coterie.methods.wrappers.compress import Compression, WithCompression
from coterie.methods.wrappers.finetune import FineTuning, WithFineTuning
from coterie.methods.wrappers.personal import PersonalColumns, WithPersonal
from coterie.methods.wrappers.privacy import Privacy, WithPrivacy
from coterie.methods.wrappers.robust import Robustness, WithRobustness
from coterie.methods.wrappers.secagg import SecAgg, WithSecAgg
from coterie.options import parse, resolved
from coterie.registry import Registry

METHODS: Registry[type[Method]] = Registry(
    "method",
    "coterie.methods",
    {
        "separate": "coterie.methods.separate:Separate",
        "fedavg": "coterie.methods.fedavg:FedAvg",
        "fedprox": "coterie.methods.fedprox:FedProx",
        "fedavg-local": "coterie.methods.fedavg_local:FedAvgLocal",
        "fedavg-ft": "coterie.methods.fedavg_ft:FedAvgFT",
        "fedprox-ft": "coterie.methods.fedprox_ft:FedProxFT",
        "fedper": "coterie.methods.fedper:FedPer",
        "lg-fedavg": "coterie.methods.lg_fedavg:LGFedAvg",
        "fedrep": "coterie.methods.fedrep:FedRep",
        "fedbabu": "coterie.methods.fedbabu:FedBABU",
        "fedbn": "coterie.methods.fedbn:FedBN",
        "fedrod": "coterie.methods.fedrod:FedRoD",
        "fedpac": "coterie.methods.fedpac:FedPAC",
        "knn-per": "coterie.methods.knn_per:KNNPer",
        "fedsa-lora": "coterie.methods.fedsa_lora:FedSALoRA",
        "ffa-lora": "coterie.methods.ffa_lora:FFALoRA",
        "scaffold": "coterie.methods.scaffold:SCAFFOLD",
        "apfl": "coterie.methods.apfl:APFL",
        "ditto": "coterie.methods.ditto:Ditto",
        "mr-mtl": "coterie.methods.mr_mtl:MRMTL",
        "fedala": "coterie.methods.fedala:FedALA",
        "perfedavg": "coterie.methods.perfedavg:PerFedAvg",
        "pfedme": "coterie.methods.pfedme:PFedMe",
        "fedfomo": "coterie.methods.fedfomo:FedFomo",
        "cfl": "coterie.methods.cfl:ClusteredFL",
        "ifca": "coterie.methods.ifca:IFCA",
        "pfedgraph": "coterie.methods.pfedgraph:PFedGraph",
        "fedamp": "coterie.methods.fedamp:FedAMP",
        "heurfedamp": "coterie.methods.heurfedamp:HeurFedAMP",
        "fedacs": "coterie.methods.fedacs:FedACS",
        "apple": "coterie.methods.apple:APPLE",
        "fedem": "coterie.methods.fedem:FedEM",
        "dfedem": "coterie.methods.dfedem:DFedEM",
        "dfedavg": "coterie.methods.dfedavg:DFedAvg",
        "mocha": "coterie.methods.mocha:MOCHA",
        "stack": "coterie.methods.stack:Stack",
    },
    lambda thing: isinstance(thing, type) and issubclass(thing, Method),
    "a class made from coterie.engine.method.Method",
)

# What the silos of a method share, for people to find one by; what a package brings is listed after these.
GROUPS: dict[str, tuple[str, ...]] = {
    "nothing, or one model for all": ("separate", "fedavg", "fedprox", "scaffold", "dfedavg"),
    "one model, which each silo makes its own": (
        "fedavg-local", "fedavg-ft", "fedprox-ft", "fedala", "perfedavg", "knn-per",
    ),
    "one model, beside one of the silo's own": ("apfl", "ditto", "pfedme", "mr-mtl"),
    "a part of the model": (
        "fedper", "lg-fedavg", "fedrep", "fedbabu", "fedbn", "fedrod", "fedpac", "fedsa-lora", "ffa-lora",
    ),
    "models of silos that are alike": (
        "fedamp", "heurfedamp", "fedacs", "apple", "fedfomo", "cfl", "ifca", "pfedgraph", "mocha",
    ),
    "the components of a mixture": ("fedem", "dfedem"),
    "what its members share": ("stack",),
}  # fmt: skip


def grouped() -> dict[str, list[str]]:
    """The names of all methods by what their silos share; what packages bring comes last."""
    known = {name for names in GROUPS.values() for name in names}
    others = [name for name in METHODS if name not in known]
    return {what: list(names) for what, names in GROUPS.items()} | ({"brought by packages": others} if others else {})


def method_class(name: str) -> type[Method]:
    """The method of that name."""
    if name not in METHODS:
        raise BadInput(f"unknown method '{name}'; {nearest(name, METHODS)}")
    return METHODS[name]


# What wraps any method it fits, by its key in the method's table; those further down wrap those above them.
WRAPPERS: dict[str, tuple[type[Any], Any]] = {
    "personal": (PersonalColumns, WithPersonal),
    "finetune": (FineTuning, WithFineTuning),
    "clip_update": (Clipping, WithClipping),
    "privacy": (Privacy, WithPrivacy),
    "compress": (Compression, WithCompression),
    "robust": (Robustness, WithRobustness),
    "blind": (Blind, WithBlind),
    "secagg": (SecAgg, WithSecAgg),
}
# The levels of `[secure]`, and what the server then learns; docs/secure.md says against whom.
LEVELS = {
    "blind": "no number of a model, unless a silo gives it the group key",
    "secagg": "the sum of a round's uploads alone, also with some silos on its side",
}


def make(label: str, table: Mapping[str, Any]) -> Method:
    """A method with its hyper-parameters, from a table of a study; `method` names it where the label does not."""
    where = f"[methods.{label}]"
    if not isinstance(table, Mapping):
        raise BadInput(f"{where}: expected a table, found {shown(table)}")
    own = {key: value for key, value in table.items() if key != "method" and key not in WRAPPERS}
    method = parse(method_class(str(table.get("method", label))), own, where)
    for key, (schema, wrap) in WRAPPERS.items():
        if key in table:
            method = wrap(method, _options(key, schema, table[key], f"{where} {key}"))
    return method


def _options(key: str, schema: type[Any], value: Any, where: str) -> Any:
    """A wrapper's options; of personal columns a list will do."""
    if key != "personal" or isinstance(value, Mapping):
        return parse(schema, value, where)
    if not isinstance(value, list | tuple):
        raise BadInput(f'{where}: expected a list, e.g. ["head"], found {shown(value)}')
    return parse(schema, {"columns": value}, where)


def given(method: Method | str) -> Method:
    """A method as it is given in Python: itself, or its name."""
    made = make(method, {}) if isinstance(method, str) else method
    if not isinstance(made, Method):
        raise BadInput(f"methods: {shown(made)} is no method; give one such as coterie.FedAMP(), or its name")
    return made


def innermost(method: Method) -> Method:
    """The method inside all wrappers of a study's table."""
    wrapped = any(isinstance(method, wrap) for _, wrap in WRAPPERS.values())
    return innermost(method.method) if wrapped else method  # type: ignore[attr-defined]


def name_of(method: Method) -> str:
    """A method's registered name, that of the method inside a wrapper, or where the code of an unregistered one is."""
    kind = type(innermost(method))
    return METHODS.name_of(kind) or f"{kind.__module__}:{kind.__qualname__}"


def names_of(method: Method) -> list[str]:
    """What runs, by its names: a method and, of a stack, its members."""
    trained: list[tuple[Method, Any]] = getattr(innermost(method), "trained", list)()
    return [name_of(method), *(name_of(member) for member, _ in trained)]


def written(label: str, method: Method) -> dict[str, Any]:
    """The table of a method with every default written back."""
    for key, (_, wrap) in WRAPPERS.items():
        if isinstance(method, wrap):
            options = resolved(method.options)
            return written(label, method.method) | {key: options["columns"] if key == "personal" else options}
    name = name_of(method)
    return ({} if name == label else {"method": name}) | resolved(method)


def learned(level: str, method: Method) -> str:
    """What the server of a method learns at a level."""
    return LEVELS[level] + ("; of the models their inner products" if level == "blind" and method.compares else "")


def level_of(method: Method) -> str | None:
    """The level at which a method runs; None: the server sees every upload."""
    return next((level for level in LEVELS if isinstance(method, WRAPPERS[level][1])), None)


def seen_of(method: Method) -> str:
    """What the server of a method learns of what leaves a silo."""
    level = level_of(method)
    return learned(level, method) if level else "every upload" if fields(method.up) else "nothing"


def levels(method: Method) -> tuple[str, ...]:
    """The levels of `[secure]` that a method allows with a small model."""
    sizes = torch.tensor([1, 2, 3, 4])
    model = Model(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), classes=3)
    model.examine(torch.zeros(2, 5))
    roster, secured = Roster(("a", "b", "c", "d"), sizes, sizes, 0), [WRAPPERS[level] for level in LEVELS]
    reasons = [wrap(method, schema()).refusal(roster, model) for schema, wrap in secured]
    return tuple(level for level, reason in zip(LEVELS, reasons, strict=True) if reason is None)
