"""Personalized federated learning: every silo its own model, trained with the silos that are like it."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie.version import VERSION

# Threads that wait for each other sleep: by default they keep their cores busy, from which a busy machine takes them
# while the others wait. Read when PyTorch is first imported; results do not depend on it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from coterie.api import Experiment, Federation, Silos, method_table, silos, study
    from coterie.conformance import check_method
    from coterie.engine.layout import Columns
    from coterie.engine.method import (
        Cohort,
        Method,
        Model,
        Nothing,
        NothingDown,
        NothingKept,
        NothingUp,
        Roster,
        spread,
    )
    from coterie.engine.task import Batch, Task, Weights, plain_step
    from coterie.errors import BadInput
    from coterie.measure.measures import Measure
    from coterie.methods.apfl import APFL
    from coterie.methods.apple import APPLE
    from coterie.methods.cfl import ClusteredFL
    from coterie.methods.dfedavg import DFedAvg
    from coterie.methods.dfedem import DFedEM
    from coterie.methods.ditto import Ditto
    from coterie.methods.fedacs import FedACS
    from coterie.methods.fedala import FedALA
    from coterie.methods.fedamp import FedAMP
    from coterie.methods.fedavg import FedAvg
    from coterie.methods.fedavg_ft import FedAvgFT
    from coterie.methods.fedavg_local import FedAvgLocal
    from coterie.methods.fedbabu import FedBABU
    from coterie.methods.fedbn import FedBN
    from coterie.methods.fedem import FedEM
    from coterie.methods.fedfomo import FedFomo
    from coterie.methods.fedpac import FedPAC
    from coterie.methods.fedper import FedPer
    from coterie.methods.fedprox import FedProx
    from coterie.methods.fedprox_ft import FedProxFT
    from coterie.methods.fedrep import FedRep
    from coterie.methods.fedrod import FedRoD
    from coterie.methods.fedsa_lora import FedSALoRA
    from coterie.methods.ffa_lora import FFALoRA
    from coterie.methods.heurfedamp import HeurFedAMP
    from coterie.methods.ifca import IFCA
    from coterie.methods.knn_per import KNNPer
    from coterie.methods.lg_fedavg import LGFedAvg
    from coterie.methods.mocha import MOCHA
    from coterie.methods.mr_mtl import MRMTL
    from coterie.methods.parts.averaging import Global, GlobalDown, GlobalModel, ModelUp, weighted_mean
    from coterie.methods.perfedavg import PerFedAvg
    from coterie.methods.pfedgraph import PFedGraph
    from coterie.methods.pfedme import PFedMe
    from coterie.methods.scaffold import SCAFFOLD
    from coterie.methods.separate import Separate
    from coterie.methods.stack import Stack
    from coterie.methods.wrappers.around import (
        with_blind,
        with_clipping,
        with_compression,
        with_finetuning,
        with_personal,
        with_privacy,
        with_robustness,
        with_secagg,
    )
    from coterie.options import option
    from coterie.personal.file import load_model
    from coterie.personal.model import PersonalModel
    from coterie.result import Comparison, Result, load_result
    from coterie.wire import Deployable, Down, Predictor, Private, Record, Server, State, Up, bank, rows, shared

__version__ = VERSION
__all__ = [
    "APFL", "APPLE", "IFCA", "MOCHA", "MRMTL", "SCAFFOLD", "BadInput", "Batch", "ClusteredFL", "Cohort", "Columns",
    "Comparison", "DFedAvg", "DFedEM", "Deployable", "Ditto", "Down", "Experiment", "FFALoRA", "FedACS", "FedALA",
    "FedAMP", "FedAvg", "FedAvgFT", "FedAvgLocal", "FedBABU", "FedBN", "FedEM", "FedFomo", "FedPAC", "FedPer",
    "FedProx", "FedProxFT", "FedRep", "FedRoD", "FedSALoRA", "Federation", "Global", "GlobalDown", "GlobalModel",
    "HeurFedAMP", "KNNPer", "LGFedAvg", "Measure", "Method", "Model", "ModelUp", "Nothing", "NothingDown",
    "NothingKept", "NothingUp", "PFedGraph", "PFedMe", "PerFedAvg", "PersonalModel", "Predictor", "Private", "Record",
    "Result", "Roster", "Separate", "Server", "Silos", "Stack", "State", "Task", "Up", "Weights", "bank",
    "check_method", "load_model", "load_result", "method_table", "option", "plain_step", "rows", "shared", "silos",
    "spread", "study", "weighted_mean", "with_blind", "with_clipping", "with_compression", "with_finetuning",
    "with_personal", "with_privacy", "with_robustness", "with_secagg",
]  # fmt: skip
# Where each lies: first what a user needs, then what the author of a method does; of the methods `METHODS` knows it.
_PLACES = {
    "api": "Experiment Federation Silos method_table silos study",
    "result": "Comparison Result load_result",
    "personal.model": "PersonalModel",
    "personal.file": "load_model",
    "errors": "BadInput",
    "methods.wrappers.around": "with_blind with_clipping with_compression with_finetuning with_personal "
    "with_privacy with_robustness with_secagg",
    "engine.layout": "Columns",
    "engine.method": "Cohort Method Model Nothing NothingDown NothingKept NothingUp Roster spread",
    "engine.task": "Batch Task Weights plain_step",
    "methods.parts.averaging": "Global GlobalDown GlobalModel ModelUp weighted_mean",
    "wire": "Deployable Down Predictor Private Record Server State Up bank rows shared",
    "measure.measures": "Measure",
    "options": "option",
    "conformance": "check_method",
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: the command line starts without PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    if name in _PLACE_OF:
        return getattr(import_module(f"coterie.{_PLACE_OF[name]}"), name)
    places = import_module("coterie.methods").METHODS.packaged.values()
    return next(place for place in places if place.attr == name).load()


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
