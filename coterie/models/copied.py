"""A copy of a module that knows nothing of the module: `copy.deepcopy` leaves a function with what it closes over."""

import copy
from collections.abc import Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def copied(module: M, keep: Mapping[int, Any] | None = None) -> M:
    """A copy of a module in which functions (hooks, lambdas) reach the copy's layers and not the module's.

    What `keep` has by its id stays as it is there.
    """
    memo = dict(keep or {})
    for layer in module.modules():  # what was computed from weights, as old weight norms keep it, is computed again
        memo |= {id(t): t.detach().clone() for t in vars(layer).values() if isinstance(t, Tensor) and not t.is_leaf}
    made = copy.deepcopy(module, memo)
    rebound = _Rebound(memo)
    for layer in made.modules():
        rebound.within(vars(layer))
    return made


class _Rebound:
    """Functions over what was copied, in place of those over what it was copied from."""

    def __init__(self, memo: Mapping[int, Any]) -> None:
        self.memo, self.made, self.seen = memo, dict[int, FunctionType](), set[int]()

    def within(self, held: Any) -> None:
        """Change the functions in a dict or a list of a copy, and in what it holds."""
        if not isinstance(held, dict | list) or id(held) in self.seen:
            return
        self.seen.add(id(held))
        for key, value in held.items() if isinstance(held, dict) else enumerate(held):
            self.within(value)
            if isinstance(value, FunctionType | partial):
                held[key] = self.of(value)

    def of(self, value: Any) -> Any:
        """What stands in the copy for something."""
        if isinstance(value, FunctionType) and value.__closure__:
            return self.made.get(id(value)) or self.function(value, value.__closure__)
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self.of(value.__self__))
        if isinstance(value, partial):
            given = {name: self.of(each) for name, each in value.keywords.items()}
            return partial(self.of(value.func), *map(self.of, value.args), **given)
        return self.memo.get(id(value), value)

    def function(self, function: FunctionType, closure: tuple[CellType, ...]) -> FunctionType:
        """A function that closes over the copy's."""
        cells = tuple(CellType() for _ in closure)
        made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
        made.__kwdefaults__ = function.__kwdefaults__
        made.__dict__.update(function.__dict__)
        self.made[id(function)] = made  # which may close over itself
        for cell, old in zip(cells, closure, strict=True):
            try:
                cell.cell_contents = self.of(old.cell_contents)
            except ValueError:  # an empty one
                continue
        return made
