"""Silos assembled in one process, and the model they train: what a study runs its methods on."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.data.silo import FederatedData, HoldsData, Silo, check_silos, named, without_samples
from coterie.engine.method import Method
from coterie.engine.rounds import Keeper, Outcome, Progress, run_rounds
from coterie.engine.rows import COMPARED, Model
from coterie.engine.sharded import held_here, simulator
from coterie.engine.simulate import Simulator, work_of
from coterie.engine.store import Store
from coterie.engine.threads import WORTH_SHARING
from coterie.engine.training import Training
from coterie.errors import BadInput, warn
from coterie.keys import generator
from coterie.methods.wrappers.personal import local_buffers
from coterie.models.parts import Blueprint


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d\d?)?", name):
        raise BadInput(f"unknown device '{name}'; take auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"device '{name}': this machine has {torch.cuda.device_count()} CUDA devices; take --device cpu")
    return device


@cache
def _remark_outputs(outputs: int, classes: int) -> None:
    """Once, however many seeds there are."""
    warn(f"the model gives {outputs} outputs for {classes} classes; those of no class learn that they are never right")


class Assembly(HoldsData):
    """Silos held in this process, and the model they train."""

    def __init__(
        self,
        silos: Sequence[Silo],
        model: Callable[[], nn.Module] | nn.Module | Blueprint | Model,
        classes: int,
        training: Training,
        seed: int = 0,
        device: str = "auto",
        rows: int | str = "auto",
        precision: str = "float32",
        data: FederatedData | None = None,
    ) -> None:
        """`data` is where the silos come from, for what is known of them beside their samples."""
        if not silos:
            raise BadInput("a federation needs at least one silo")
        names = [silo.name for silo in silos]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadInput(f"two silos are called '{twice}'; a silo's draws go by its name, so give each its own")
        check_silos(silos, classes)
        self.silos, self.training, self.seed, self.rows, self.data = list(silos), training, seed, rows, data
        self.schemas = {} if data is None else data.schemas
        self.differences = () if data is None else data.differences
        self.note = "" if data is None else data.note
        self.table: dict[str, Any] = {}  # the `[model]` table of its model, where a study has one
        if isinstance(model, Model):
            self.model = model
        else:
            unit = next(iter(self.schemas.values())).unit if self.schemas else 1.0
            self.model = Model(model, classes, pick_device(device), precision=precision, unit=unit)
        # PyTorch's own switches: float32 means float32 unless TensorFloat-32 was asked for.
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        first = torch.from_numpy(silos[0].train.x[:COMPARED].copy()).to(self.model.device)  # a module may change it
        first = first.to(self.model.dtype) if first.is_floating_point() else first
        self.model.probe(first)
        if self.model.classes < self.model.output[0] and self.model.classes:
            _remark_outputs(self.model.output[0], self.model.classes)
        self._check_labels(first[:2], torch.from_numpy(silos[0].train.y[:2]).to(self.model.device))
        self._check_batches(first[:1])
        draws = {s.name: generator(seed, "unseen", s.name).random() for s in silos}
        away = sorted(draws, key=draws.__getitem__)[: int(training.unseen * len(draws) + 0.5)]
        self.members = [s for s in self.silos if s.name not in away]
        self.newcomers = [s for s in self.silos if s.name in away]
        if not self.members:
            raise BadInput(f"[train] unseen = {training.unseen:g} leaves no silo to train; lower it")
        self.store = Store(held_here(self.members), self.model.device)

    def about(self) -> str:
        return named([silo.name for silo in self.silos])

    def engine(self, method: Method, training: Training | None = None, models: bool = True) -> Simulator:
        """The members as rows, before the first round; `models`: whether those of the picked round are kept."""
        training = training or self.training
        method = self.suited(method, training)
        return simulator()(method, self.members, self.model, training, self.seed, self.rows, self.store, models)

    def suited(self, method: Method, training: Training) -> Method:
        """The method with its statistics kept on the silos, where they are."""
        return local_buffers(method, self.model) if training.buffers == "local" else method

    def train(
        self,
        method: Method,
        on_round: Callable[[Progress], None] = lambda progress: None,
        training: Training | None = None,
        keeper: Keeper | None = None,
        models: bool = True,
    ) -> Outcome:
        """Train a method; silos held out arrive afterwards. `training` is the method's own, where it differs."""
        engine = self.engine(method, training, models)
        outcome = run_rounds(engine.method, engine, engine.roster, self.model, engine.training, on_round, keeper)
        if self.newcomers:
            inner = self.suited(method, engine.training)
            how = (self.model, engine.training, self.seed, engine.rows)
            later = simulator()(inner, self.newcomers, *how, models=False)
            outcome.results.append(later.measured_newcomers(outcome.server))
        return outcome

    @property
    def thin(self) -> bool:
        """Whether no call of the model is work enough for more than one thread."""
        work = work_of(len(self.members), self.training, self.model)
        return self.model.device.type == "cpu" and work < WORTH_SHARING

    def here(self) -> list[Silo]:
        """The members that live in this process."""
        return held_here(self.members)

    def forget_others(self) -> None:
        """Free the samples of members that live in other processes; that they are there, and their labels, stays."""
        mine = {silo.name for silo in self.here()} | {silo.name for silo in self.newcomers}
        self.silos = [silo if silo.name in mine else without_samples(silo) for silo in self.silos]
        known = {silo.name: silo for silo in self.silos}
        self.members = [known[silo.name] for silo in self.members]
        self.data = None if self.data is None else replace(self.data, silos=self.silos)

    def checksum(self) -> str:
        """That of all the silos' data, by which a run that goes on knows that they are the same."""
        found = hashlib.sha256()
        for silo in self.silos:
            found.update(silo.name.encode())
            for part in (silo.train, silo.validation, silo.test):
                for array in (part.x, part.y, *([] if part.incumbent is None else [part.incumbent])):
                    found.update(f"{array.dtype} {array.shape}".encode())
                    found.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        return found.hexdigest()

    def _check_labels(self, x: Tensor, y: Tensor) -> None:
        """Refuse a model whose output cannot be compared with the labels."""
        with torch.no_grad():
            out = self.model.module_of(self.model.start(0))(x)
        try:
            self.model.sample_losses(out[None], y[None])
        except (RuntimeError, ValueError):
            found, labels = tuple(out.shape[1:]), tuple(y.shape[1:])
            raise BadInput(
                f"the model's output {found} for a sample does not fit its labels of shape {labels}; take another model"
            ) from None

    def _check_batches(self, sample: Tensor) -> None:
        """Refuse silos whose last batch is a single sample, where the model cannot take its statistics of one."""
        size = self.training.batch_size
        whole = self.training.whole_batches  # then only a silo's only batch can be one
        lonely = [s for s in self.silos if len(s.train) == 1 or (not whole and (len(s.train) - 1) % size == 0)]
        if not lonely or not self.model.couples_samples:
            return
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                module = self.model.module_of(self.model.start(0))
                module.train()
                module(sample)
        except ValueError:
            raise BadInput(
                f"{lonely[0].name} train: {len(lonely[0].train)} samples in batches of {size} leave a batch of one, of "
                "which BatchNorm has no statistics; take another [train] batch_size"
            ) from None
