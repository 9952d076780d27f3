"""Clipping: what a silo uploads may differ from what it was sent by no more than a given length.

As in McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018: the change is
scaled back to the length, not cut off. It bounds how far one silo can move the others by accident; a rogue silo
would leave it out, and `robust` is against those.
"""

from dataclasses import dataclass
from typing import Any

from coterie.engine.method import Method, Model, Roster, Task
from coterie.engine.wrapper import Wrapper
from coterie.methods.parts.attention import lengths
from coterie.methods.wrappers.changes import REFUSAL, bases, changes, columns_of, with_changes
from coterie.options import option
from coterie.wire import described


@dataclass(frozen=True)
class Clipping:
    """`clip_update = {norm = 1.0}` in a method's table."""

    norm: float = option(1.0, "the longest change of a model that may leave a silo", above=0)


@dataclass(frozen=True, repr=False)
class WithClipping(Wrapper):
    """Any method whose silos send back what they were sent, changed."""

    method: Method
    options: Clipping

    def end(self, task: Task, state: Any, down: Any, private: Any) -> tuple[Any, Any]:
        up, kept = self.method.end(task, state, down, private)
        base = bases(self.method) or {}
        changed = changes(up, down, base)
        for name, change in changed.items():
            # Buffers are statistics, not steps: they neither count towards the length nor are scaled.
            trained = columns_of(described(up)[name], self.method, task.model).trained
            scale = (self.options.norm / lengths(change[..., :trained]).clamp_min(1e-12)).clamp_max(1)
            change[..., :trained] *= scale[..., None]  # what is not finite stays so, and the judge rejects it
        return up.replace(**with_changes(changed, down, base)), kept

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if bases(self.method) is None:
            return f"clip_update: {REFUSAL}, so there is no change of a model to clip"
        return self.method.refusal(roster, model)
