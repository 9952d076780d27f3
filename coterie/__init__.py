"""Personalized federated learning: every silo its own model, trained with the silos that are like it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie.version import VERSION

if TYPE_CHECKING:
    from coterie.api import Federation, Silos, method_table, silos
    from coterie.conformance import check_method
    from coterie.errors import BadInput
    from coterie.methods.apfl import APFL
    from coterie.methods.apple import APPLE
    from coterie.methods.cfl import ClusteredFL
    from coterie.methods.dfedavg import DFedAvg
    from coterie.methods.dfedem import DFedEM
    from coterie.methods.ditto import Ditto
    from coterie.methods.fedacs import FedACS
    from coterie.methods.fedamp import FedAMP
    from coterie.methods.fedavg import FedAvg
    from coterie.methods.fedavg_ft import FedAvgFT
    from coterie.methods.fedavg_local import FedAvgLocal
    from coterie.methods.fedem import FedEM
    from coterie.methods.fedfomo import FedFomo
    from coterie.methods.fedprox import FedProx
    from coterie.methods.fedprox_ft import FedProxFT
    from coterie.methods.heurfedamp import HeurFedAMP
    from coterie.methods.mocha import MOCHA
    from coterie.methods.perfedavg import PerFedAvg
    from coterie.methods.pfedme import PFedMe
    from coterie.methods.scaffold import SCAFFOLD
    from coterie.methods.separate import Separate
    from coterie.personal.file import load_model
    from coterie.personal.model import PersonalModel
    from coterie.result import Comparison, Result

__version__ = VERSION
__all__ = [
    "APFL", "APPLE", "MOCHA", "SCAFFOLD", "BadInput", "ClusteredFL", "Comparison", "DFedAvg", "DFedEM", "Ditto",
    "FedACS", "FedAMP", "FedAvg", "FedAvgFT", "FedAvgLocal", "FedEM", "FedFomo", "FedProx", "FedProxFT", "Federation",
    "HeurFedAMP", "PFedMe", "PerFedAvg", "PersonalModel", "Result", "Separate", "Silos", "check_method", "load_model",
    "method_table", "silos",
]  # fmt: skip
_PLACES = {
    "Federation": "api", "Silos": "api", "method_table": "api", "silos": "api", "check_method": "conformance",
    "PersonalModel": "personal.model", "BadInput": "errors", "load_model": "personal.file", "Comparison": "result",
    "Result": "result",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: the command line starts without PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    return getattr(import_module(f"coterie.{_PLACES.get(name, 'methods')}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
