"""A model of your own: any `nn.Module`, given in Python or named on the command line. Never from a study file."""

import importlib
import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from coterie.errors import BadInput, first_line
from coterie.models.foreign import hf_model, timm_model

FOREIGN = {"timm": timm_model, "hf": hf_model}
CLASSES = ("num_classes", "n_classes", "outputs")  # what models of others call how many outputs they have


def is_code(name: object) -> bool:
    """Whether a model's name is the path of an import."""
    return isinstance(name, str) and ":" in name


def load_code(path: str) -> Any:
    """What `package.module:Class` names (in the folder one works in, too), or `timm:NAME` or `hf:FOLDER`."""
    module, _, name = path.partition(":")
    if module in FOREIGN:
        return FOREIGN[module](name)
    if module.endswith(".py"):  # a file below the folder one works in
        module = module.removesuffix(".py").replace("/", ".")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        thing = importlib.import_module(module)
        for part in name.split("."):
            thing = getattr(thing, part)
        return thing
    except (ImportError, ValueError, SyntaxError) as error:
        raise BadInput(f"--model {path}: {module or 'no module'} cannot be imported ({error})") from None
    except AttributeError:
        raise BadInput(f"--model {path}: {module} has no {name or 'class of that name'}; check its name") from None
    finally:
        sys.path.remove(here)


def factory(thing: Any, shape: tuple[int, ...], outputs: int) -> Callable[[], nn.Module] | nn.Module:
    """What makes the model: a class or function that takes nothing, or the inputs and outputs; or a module as it is.

    Inputs are how many numbers a row of a table becomes, or the shape of a sample that is an array. Outputs are given
    by name where there is a name for them, which may have a default.
    """
    if isinstance(thing, nn.Module):
        return thing
    if not callable(thing):
        raise BadInput(f"model: a {type(thing).__name__}; give an nn.Module, its class or a function that makes one")
    inputs = math.prod(shape) if len(shape) == 1 else shape
    needed, named = _takes(thing)
    if named and len(needed) > 1:
        more = f"{_name(thing)} needs {', '.join(needed)} beside {named}"
        raise BadInput(f"model: {more}; give a function of {needed[0]} and {named} that sets the others")
    given = () if named or not needed else (inputs, outputs)
    beside = {**dict.fromkeys(needed, inputs), named: outputs} if named else {}

    def make() -> nn.Module:
        try:
            made = thing(*given, **beside)
        except (TypeError, ValueError, RuntimeError) as error:
            arguments = ", ".join([*map(str, given), *(f"{name}={value}" for name, value in beside.items())])
            raise BadInput(f"model: {_name(thing)}({arguments}) fails: {first_line(error)}") from None
        if not isinstance(made, nn.Module):
            raise BadInput(f"model: {_name(thing)} makes a {type(made).__name__}, not an nn.Module")
        return made

    return make


def code_name(thing: Any) -> str:
    """How a study writes down a model that came as code."""
    kind = type(thing) if isinstance(thing, nn.Module) else thing
    return f"{getattr(kind, '__module__', '')}:{_name(kind)}"


def _takes(thing: Any) -> tuple[list[str], str]:
    """What it must be given beside its number of outputs, and what it calls that, if it does."""
    try:
        parameters = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return [], ""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    numbers = [n for n, p in parameters.items() if p.kind in (by_place[1], p.KEYWORD_ONLY) and _is_number(p.default)]
    named = next((name for name in CLASSES if name in numbers), "")
    return [n for n, p in parameters.items() if p.default is p.empty and p.kind in by_place and n != named], named


def _is_number(default: Any) -> bool:
    return default is inspect.Parameter.empty or (isinstance(default, int) and not isinstance(default, bool))


def _name(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__name__))
