"""A federation: silos and a model, on which methods train."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from coterie.data.silo import Silo, check_silos
from coterie.engine.rounds import Outcome, Progress, run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.store import Store
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.methods.method import Method


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"unknown device '{name}'; take auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"device '{name}': this machine has no CUDA device; take --device cpu")
    return device


class Federation:
    """Silos held in this process, and the model they train."""

    def __init__(
        self,
        silos: Sequence[Silo],
        model: Callable[[], nn.Module] | nn.Module,
        classes: int,
        training: Training,
        seed: int = 0,
        device: str = "auto",
        rows: int | str = "auto",
    ) -> None:
        check_silos(silos, classes)
        self.silos, self.training, self.seed, self.rows = list(silos), training, seed, rows
        self.model = Model(model, classes, pick_device(device))
        first = torch.from_numpy(silos[0].train.x[:2])
        self.model.probe(first.to(self.model.device, self.model.dtype) if first.is_floating_point() else first)
        draws = {s.name: generator(seed, "unseen", s.name).random() for s in silos}
        away = sorted(draws, key=draws.__getitem__)[: int(training.unseen * len(draws) + 0.5)]
        self.members = [s for s in self.silos if s.name not in away]
        self.guests = [s for s in self.silos if s.name in away]
        if not self.members:
            raise BadInput(f"[train] unseen = {training.unseen:g} leaves no silo to train; lower it")
        self.store = Store(self.members, self.model.device)

    def engine(self, method: Method) -> Simulator:
        """The members as rows, before the first round."""
        return Simulator(method, self.members, self.model, self.training, self.seed, self.rows, self.store)

    def train(self, method: Method, on_round: Callable[[Progress], None] = lambda progress: None) -> Outcome:
        """Train a method; silos held out arrive afterwards."""
        engine = self.engine(method)
        outcome = run_rounds(method, engine, engine.roster, self.model, self.training, on_round)
        if self.guests:
            late = Simulator(method, self.guests, self.model, self.training, self.seed, engine.rows)
            outcome.results.append(late.arrivals(outcome.server))
        outcome.rows = engine.rows
        return outcome
