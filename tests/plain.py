"""Plain PyTorch, one client after another: a module each, autograd, torch.optim. What the engine is held against.

Taken from the engine is only what no definition fixes: the random start, and the order of a silo's samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.data.silo import Part, Silo
from coterie.engine.method import Method
from coterie.engine.plan import BatchPlan
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.task import Task
from coterie.engine.training import Training
from coterie.methods.fedavg import FedAvg

CLASSES = 3
SIZES = (7, 10, 6)  # in batches of 4: different numbers of steps, different partial batches, none of one sample
NAMES = ("north", "south", "east", "west", "centre")
TRAINING = Training(rounds=3, local_epochs=2, batch_size=4, lr=0.1)


def make_silos(
    sizes: Sequence[int] = SIZES,
    shape: tuple[int, ...] = (5,),
    tokens: int = 0,
    validation: Sequence[int] | None = None,
    test: Sequence[int] | None = None,
) -> list[Silo]:
    """Silos with random data: numbers of a shape or, with `tokens`, sequences in which each token is labelled."""
    silos = []
    for i, n in enumerate(sizes):
        draw = np.random.default_rng(i)

        def part(count: int, draw: np.random.Generator = draw) -> Part:
            if tokens:
                x = draw.integers(tokens, size=(count, *shape))
                return Part(x, draw.integers(CLASSES, size=x.shape))
            x = draw.normal(size=(count, *shape)).astype(np.float32)
            return Part(x, draw.integers(CLASSES, size=count))

        silos.append(Silo(NAMES[i], part(n), part(validation[i] if validation else 4), part(test[i] if test else 6)))
    return silos


def make_engine(
    build: Callable[[], nn.Module],
    silos: Sequence[Silo] | None = None,
    method: Method | None = None,
    rows: int | str = "all",
    dtype: torch.dtype = torch.float64,
    classes: int = CLASSES,
    seed: int = 1,
    probe: bool = True,
    **train: object,
) -> Simulator:
    """A simulator of a few silos, whose model was probed with some samples as an Assembly does it, or was not."""
    training = replace(TRAINING, **train)  # type: ignore[arg-type]
    model = Model(build, classes, dtype=dtype)
    silos = silos or make_silos()
    if probe:
        model.probe(data(silos[0], dtype=dtype)[0][:2])
    return Simulator(method or FedAvg(), silos, model, training, seed, rows)


def by_steps(engine: Simulator, round: int = 0) -> Task:
    """All silos of an engine as a task, the largest first."""
    order = np.argsort(-engine.store["train"].count, kind="stable")
    return engine.task(torch.from_numpy(order), round)


def client(build: Callable[[], nn.Module], model: Model, row: Tensor) -> nn.Module:
    """A module of its own with the weights and buffers of one row, ready to train."""
    module = build().to(model.dtype)
    module.load_state_dict(model.frozen | model.layout.named(row.clone()), strict=False)
    return module.train()


def by_hook(module: nn.Module, head: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs, and what a forward pre-hook of the head sees; a copy, in case the head changes it."""
    seen: list[Tensor] = []
    with module.get_submodule(head).register_forward_pre_hook(lambda _, given: seen.append(given[0].clone())):
        out = module(x)
    (features,) = seen
    return out, features


def as_row(model: Model, module: nn.Module) -> Tensor:
    """A module as a row."""
    return model.layout.flatten(dict(module.named_parameters()) | dict(module.named_buffers()))


def data(silo: Silo, split: str = "train", dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """x and y of a silo."""
    part: Part = getattr(silo, split)
    x, y = torch.from_numpy(part.x), torch.from_numpy(part.y)
    return (x.to(dtype) if x.is_floating_point() else x), (y.to(dtype) if y.is_floating_point() else y)


def batches(engine: Simulator, silo: Silo, round: int = 0, purpose: str = "train") -> list[np.ndarray]:
    """The positions of the samples of each mini-batch, the last of an epoch as small as it is."""
    t = engine.training
    count = np.array([len(silo.train)])
    plan = BatchPlan((silo.name,), count, t.batch_size, t.local_epochs, engine.seed, purpose, round)
    return [step[step >= 0] for step in plan.order[0]]


def loss_of(out: Tensor, y: Tensor, classes: int = CLASSES) -> Tensor:
    """The mean loss of a batch."""
    return F.cross_entropy(out, y) if classes else F.mse_loss(out.reshape(y.shape), y)


def train(module: nn.Module, x: Tensor, y: Tensor, order: list[np.ndarray], optimizer: torch.optim.Optimizer) -> None:
    """The textbook loop."""
    module.train()
    for index in order:
        optimizer.zero_grad()
        loss_of(module(x[index]), y[index]).backward()
        optimizer.step()


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-10) -> None:
    """Equal but for rounding."""
    torch.testing.assert_close(ours, theirs.detach(), rtol=tolerance, atol=tolerance)
