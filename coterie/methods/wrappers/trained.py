"""Training of its own: a method inside another, such as a member of a stack, that trains with settings of its own.

Batches and epochs are those of the loop that all share; the learning rate follows the study's schedule.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from coterie.engine.method import Batch, Method, Task
from coterie.engine.wrapper import Wrapper
from coterie.options import option, resolved


@dataclass(frozen=True)
class OwnTraining:
    """`train = {lr = 0.1}` in a member's table."""

    optimizer: Literal["sgd", "adam"] | None = option(None, "its optimiser instead of the study's")
    lr: float | None = option(None, "its learning rate instead of the study's", above=0, high=1e6)
    weight_decay: float | None = option(None, "its weight decay instead of the study's", low=0, high=1e6)


@dataclass(frozen=True, repr=False)
class WithTraining(Wrapper):
    """A method whose silos train with settings of their own."""

    method: Method
    options: OwnTraining

    def task(self, task: Task) -> Task:
        """The task with these settings."""
        return task.trained_with(**resolved(self.options))

    def inside(self, task: Task, down: Any, private: Any) -> tuple[Task, Any, Any]:
        return self.task(task), down, private

    def step(self, task: Task, state: Any, batch: Batch) -> Any:
        own = self.task(task)
        return self.base.step(own, state, replace(batch, lr=own.lr))
