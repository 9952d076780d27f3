"""Local training that is pulled towards a centre: argmin F_i(w) + strength/2 ‖w − centre‖²."""

from typing import TypeVar

import torch
from torch import Tensor

from coterie.engine.task import Batch, Task, Weights, stepped
from coterie.wire import rows


class Pulled(Weights):
    """A model on a spring."""

    centre: Tensor = rows("what it is pulled towards", role="model")
    strength: Tensor = rows("how strongly")


Trained = TypeVar("Trained", bound=Weights)  # a model `w` in training


def at_centre(task: Task, centre: Tensor, strength: Tensor | float) -> Pulled:
    """Training starts where the pull is zero; `strength` is one number or one per silo."""
    strength = torch.as_tensor(strength, dtype=centre.dtype, device=centre.device).expand(len(centre))
    return Pulled(w=centre, centre=centre, strength=strength, opt=task.optimizer.init(centre))


def pulled_step(task: Task, state: Pulled, batch: Batch) -> Pulled:
    """One optimiser step on the loss, and the exact proximal step of the pull (`engine/solver.py`)."""
    gradient = task.grad(state.w, batch).pulled(state.centre, state.strength)
    return stepped(task, state, gradient, batch)
