"""Docstrings of the API reference as Python has them: of a function that takes options, with these options.

An extension of Griffe, which reads sources alone and so never sees what `coterie.options.keywords` adds.
"""

from functools import reduce
from importlib import import_module
from typing import Any

from griffe import Extension


class WithOptions(Extension):
    """Lists the options."""

    def on_function(self, *, func: Any, **_: Any) -> None:
        """Take the docstring of the function itself, where `keywords` has made it."""
        if any(each.callable_path.endswith("keywords") for each in func.decorators):
            module = func.module.path
            names = func.path.removeprefix(f"{module}.").split(".")
            func.docstring.value = reduce(getattr, names, import_module(module)).__doc__
