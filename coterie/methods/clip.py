"""Clipping: what a silo uploads may differ from what it was sent by no more than a given length.

As in McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018: the change is
scaled back to the length, not cut off. It bounds how far one silo can move the others, by accident or design.
"""

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from coterie.methods.method import Method, Model, Roster, Task
from coterie.methods.wrapper import Wrapper
from coterie.options import option
from coterie.wire import Record


@dataclass(frozen=True)
class Clipping:
    """`clip_update = {norm = 1.0}` in a method's table."""

    norm: float = option(1.0, "the longest change of a model that may leave a silo", above=0)


@dataclass(frozen=True)
class WithClipping(Wrapper):
    """Any method that exchanges one model with each silo, or a change of one."""

    method: Method
    options: Clipping

    @property
    def base(self) -> Method:
        return self.method

    def end(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        up, kept = self.method.end(task, state, down, private)
        made: dict[str, Tensor] = {}
        for name, is_change in _models(type(up)).items():
            whole: Tensor = getattr(up, name)
            before = 0 if is_change else getattr(down, next(iter(_models(type(down)))))
            change = whole - before
            # Buffers are statistics, not steps: they neither count towards the length nor are scaled.
            trained = task.model.layout.trained
            length = change[..., :trained].norm(dim=-1, keepdim=True)
            change[..., :trained] *= (self.options.norm / length.clamp_min(1e-12)).clamp_max(1)
            made[name] = before + change
        return up.replace(**made), kept

    def refusal(self, roster: Roster, model: Model) -> str | None:
        up, down = _models(self.method.up), _models(self.method.down)
        whole = [name for name, is_change in up.items() if not is_change]
        alike = [f for f in fields(self.method.up) if "d" in f.metadata["shape"]]
        if not up or len(alike) != len(up) or (whole and (len(up) != 1 or len(down) != 1)):
            return (
                "clip_update: it does not exchange one model with each silo, so there is no change of a model to clip"
            )
        return self.method.refusal(roster, model)


def _models(kind: type[Record]) -> dict[str, bool]:
    """The fields that hold a model or a change of one, and which of them are changes."""
    return {
        f.name: bool(f.metadata.get("change"))
        for f in fields(kind)  # type: ignore[arg-type]
        if f.metadata.get("shape") == ("d",)
    }
