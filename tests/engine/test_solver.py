"""Optimisers over rows are torch.optim on every row by itself."""

from typing import Any

import pytest
import torch
from plain import as_row, batches, by_steps, client, close, data, make_engine, make_silos, train
from torch import Tensor, nn

from coterie.engine.solver import SGD, Adam, Gradient, Optimizer, optimizer
from coterie.errors import BadInput

CASES = {
    "sgd": (SGD(), lambda p, lr: torch.optim.SGD(p, lr)),
    "momentum": (SGD(0.9), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    "decay": (SGD(0.0, 0.1), lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1)),
    "momentum-decay": (SGD(0.5, 0.1), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.5, weight_decay=0.1)),
    "adam": (Adam(), lambda p, lr: torch.optim.Adam(p, lr)),
    "adam-decay": (Adam(0.1), lambda p, lr: torch.optim.Adam(p, lr, weight_decay=0.1)),
}
cases = pytest.mark.parametrize("case", CASES)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("lead", [(1,), (3,), (3, 2)], ids=str)
@cases
def test_steps_are_torch_optims_on_each_row(case: str, lead: tuple[int, ...]) -> None:
    ours, theirs = CASES[case]
    w = drawn(*lead, 6)
    alone = [nn.Parameter(row.clone()) for row in w.reshape(-1, 6)]
    optimizers = [theirs([p], 0.1) for p in alone]
    state = ours.init(w)
    for t in range(5):
        grads = drawn(*lead, 6, seed=t + 1)
        lr = 0.1 / (t + 1)
        w, state = ours.step(w, Gradient(grads, torch.zeros(lead)), state, lr)
        for p, o, g in zip(alone, optimizers, grads.reshape(-1, 6), strict=True):
            o.param_groups[0]["lr"] = lr
            p.grad = g.clone()
            o.step()
        close(w.reshape(-1, 6), torch.stack(alone))


@pytest.mark.parametrize("lead", [(3,), (3, 2)], ids=str)
@cases
def test_the_columns_of_buffers_take_what_the_forward_pass_left(case: str, lead: tuple[int, ...]) -> None:
    ours, theirs = CASES[case]
    w = drawn(*lead, 6)
    plain = nn.Parameter(w[..., :4].clone())
    reference = theirs([plain], 0.1)
    state = ours.init(w)
    for t in range(3):
        grads = torch.cat([drawn(*lead, 4, seed=t + 1), torch.zeros(*lead, 2, dtype=torch.float64)], -1)
        buffers = drawn(*lead, 2, seed=t + 10)
        w, state = ours.step(w, Gradient(grads, torch.zeros(lead), buffers), state, 0.1)
        assert torch.equal(w[..., 4:], buffers)  # no decay, no momentum, no pull
        plain.grad = grads[..., :4].clone()
        reference.step()
        close(w[..., :4], plain)


@cases
def test_a_step_changes_nothing_that_it_was_given(case: str) -> None:
    ours, _ = CASES[case]
    w, grads = drawn(3, 6), drawn(3, 6, seed=1)
    _, state = ours.step(w, Gradient(grads, torch.zeros(3)), ours.init(w), 0.1)
    kept = {name: t.clone() for name, t in state.tensors().items()}
    ours.step(w, Gradient(grads, torch.zeros(3)), state, 0.1)
    assert torch.equal(w, drawn(3, 6))
    assert torch.equal(grads, drawn(3, 6, seed=1))
    for name, t in state.tensors().items():
        assert torch.equal(t, kept[name])


@pytest.mark.parametrize("build_name", ["mlp", "batchnorm"])
@cases
def test_ragged_training_is_torch_optim_on_each_client(case: str, build_name: str) -> None:
    """Silos finish at different steps; each one's optimiser has then taken exactly its own."""
    ours, theirs = CASES[case]

    def build() -> nn.Module:
        if build_name == "mlp":
            return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        # No bias before the norm: its gradient is zero but for rounding, which Adam would blow up.
        return nn.Sequential(nn.Linear(5, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))

    silos = make_silos((7, 14, 3, 6))
    chosen = {"optimizer": "adam"} if isinstance(ours, Adam) else {"momentum": ours.momentum}  # type: ignore[attr-defined]
    engine = make_engine(build, silos, weight_decay=ours.weight_decay, lr=0.05, **chosen)  # type: ignore[attr-defined]
    task = by_steps(engine)
    start = task.start(common=False)
    trained = task.fit(start, "train")
    for place, silo in enumerate(task.silos.tolist()):
        module = client(build, engine.model, start[place])
        x, y = data(silos[silo])
        train(module, x, y, batches(engine, silos[silo]), theirs(module.parameters(), 0.05))
        close(trained[place], as_row(engine.model, module), 1e-8)


class Standardised(nn.Module):
    """Inputs minus constants that are kept as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("shift", torch.linspace(1, 2, 5))

    def forward(self, x: Tensor) -> Any:
        return self.layer(x - self.shift)


@pytest.mark.parametrize("chosen", [{"momentum": 0.9}, {"optimizer": "adam"}], ids=["sgd", "adam"])
def test_constant_buffers_stay_as_they_are(chosen: dict[str, object]) -> None:
    engine = make_engine(Standardised, weight_decay=0.1, **chosen)
    task = by_steps(engine)
    trained = task.fit(task.start(), "train")
    expected = torch.linspace(1, 2, 5).double()
    close(engine.model.layout.named(trained)["shift"], expected.expand(3, -1))
    assert not torch.equal(trained[0], trained[1])


def test_gradients_add_and_scale_without_losing_losses_or_buffers() -> None:
    losses, buffers = torch.rand(2), torch.rand(2, 3)
    g = Gradient(torch.ones(2, 4), losses, buffers)
    moved = (g + torch.full((2, 4), 0.5)) * 2.0
    assert torch.equal(moved.grads, torch.full((2, 4), 3.0))
    assert moved.losses is losses
    assert moved.buffers is buffers


@pytest.mark.parametrize(("name", "expected"), [("sgd", SGD(0.5, 0.1)), ("adam", Adam(0.1))], ids=["sgd", "adam"])
def test_a_study_names_its_optimiser(name: str, expected: Optimizer) -> None:
    assert optimizer(name, 0.5 if name == "sgd" else 0.0, 0.1) == expected


def test_adam_with_momentum_is_refused() -> None:
    with pytest.raises(BadInput, match="adam has no momentum"):
        optimizer("adam", 0.9, 0.0)
