"""Optimisers over rows are torch.optim on every row by itself."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from plain import as_row, batches, by_steps, client, close, data, make_engine, make_silos, train
from torch import Tensor, nn

from coterie.engine.layout import Columns
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


OPTIMIZERS = {"sgd": SGD(), "momentum": SGD(0.9), "adam": Adam()}
optimizers = pytest.mark.parametrize("name", OPTIMIZERS)


def pulled(grads: Tensor, centre: Tensor, strength: Tensor | float) -> Gradient:
    lead = grads.shape[:-1]
    strength = torch.as_tensor(strength, dtype=grads.dtype).expand(lead)
    return Gradient(grads, torch.zeros(lead)).pulled(centre, strength)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("lr", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("strength", [1e-3, 1.0, 1e3, 1e12, 1e30])
@optimizers
def test_a_pull_never_leads_away_from_its_centre(name: str, strength: float, lr: float, dtype: torch.dtype) -> None:
    """Whatever its strength and the learning rate: with no gradient of the loss, each number only comes nearer."""
    ours, w, centre = OPTIMIZERS[name], drawn(3, 6).to(dtype), drawn(3, 6, seed=1).to(dtype)
    state, apart = ours.init(w), (w - centre).abs()
    for _ in range(5):
        w, state = ours.step(w, pulled(torch.zeros_like(w), centre, strength), state, lr)
        assert ((w - centre).abs() <= apart).all()
        apart = (w - centre).abs()
    if lr * strength > 1e9:
        assert torch.equal(w, centre)


@pytest.mark.parametrize("lead", [(3,), (3, 2)], ids=str)
def test_sgds_pulled_step_solves_the_proximal_problem(lead: tuple[int, ...]) -> None:
    """argmin_z ⟨g + λw, z⟩ + ‖z − w‖²/2η + s/2 ‖z − u‖², each row with its own s: the gradient at z is zero."""
    w, g, u, s, lr = drawn(*lead, 6), drawn(*lead, 6, seed=1), drawn(*lead, 6, seed=2), drawn(*lead, seed=3).exp(), 0.3
    z, _ = SGD(0.0, 0.1).step(w, pulled(g, u, s), SGD().init(w), lr)
    close(g + 0.1 * w + (z - w) / lr + s[..., None] * (z - u), torch.zeros_like(w))


def test_adams_pulled_step_solves_the_proximal_problem_in_its_metric() -> None:
    """argmin_z ⟨m̂, z⟩ + Σ (z − w)² (√v̂ + ε)/2η + s/2 ‖z − u‖², with the moments of the loss's gradients alone."""
    w, u, s, lr, t = drawn(3, 6), drawn(3, 6, seed=9), drawn(3, seed=8).exp(), 0.3, 4
    ours, grads = Adam(), [drawn(3, 6, seed=i) for i in range(1, t + 1)]
    state = ours.init(w)
    for g in grads:
        before = w
        w, state = ours.step(w, pulled(g, u, s), state, lr)
    m = sum(0.1 * 0.9 ** (t - 1 - i) * g for i, g in enumerate(grads)) / (1 - 0.9**t)
    v = sum(0.001 * 0.999 ** (t - 1 - i) * g * g for i, g in enumerate(grads)) / (1 - 0.999**t)
    slope = m + (w - before) * (v.sqrt() + 1e-8) / lr + s[:, None] * (w - u)
    close(slope, torch.zeros_like(w))


@optimizers
def test_no_strength_is_no_pull_bit_for_bit(name: str) -> None:
    ours, w, grads = OPTIMIZERS[name], drawn(3, 6).float(), drawn(3, 6, seed=1).float()
    (plain, before), (held, after) = (
        ours.step(w, gradient, ours.init(w), 0.1)
        for gradient in (Gradient(grads, torch.zeros(3)), pulled(grads, drawn(3, 6, seed=2).float(), 0.0))
    )
    assert torch.equal(plain, held)
    assert all(torch.equal(t, after.tensors()[key]) for key, t in before.tensors().items())


@optimizers
def test_training_ends_where_loss_and_pull_balance(name: str) -> None:
    """F(w) = ‖w − o‖²/2 pulled with s towards u has its minimum at (o + s u)/(1 + s), whatever the momentum."""
    ours, w, optimum, centre, s = OPTIMIZERS[name], drawn(2, 4), drawn(2, 4, seed=1), drawn(2, 4, seed=2), 3.0
    state = ours.init(w)
    for t in range(4000):
        w, state = ours.step(w, pulled(w - optimum, centre, s), state, 0.05 / (1 + t / 100))
    torch.testing.assert_close(w, (optimum + s * centre) / (1 + s), rtol=1e-4, atol=1e-4)


@optimizers
def test_a_pull_as_strong_as_a_lasting_gradient_holds_it_from_the_first_step_on(name: str) -> None:
    """Local training starts with no momentum in every round: there the pull must not be stronger than at its end."""
    ours, start, g, s = OPTIMIZERS[name], drawn(3, 2, 6), drawn(3, 2, 6, seed=1), 1e-6
    w, state = start, ours.init(start)
    for _ in range(30):
        w, state = ours.step(w, pulled(g, start + g / s, s), state, 0.1)  # so far away that the pull is lasting too
        torch.testing.assert_close(w, start, rtol=0, atol=1e-4)


@optimizers
def test_buffers_are_not_pulled(name: str) -> None:
    ours, w, buffers = OPTIMIZERS[name], drawn(3, 6), drawn(3, 2, seed=1)
    gradient = Gradient(torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3), buffers)
    w, _ = ours.step(w, gradient.pulled(drawn(3, 6, seed=2), torch.full((3,), 1e30).double()), ours.init(w), 0.1)
    assert torch.equal(w[:, 4:], buffers)
    assert torch.equal(w[:, :4], drawn(3, 6, seed=2)[:, :4])


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


@pytest.mark.parametrize("lead", [(3,), (3, 2)], ids=str)
@cases
def test_every_row_may_have_a_rate_of_its_own(case: str, lead: tuple[int, ...]) -> None:
    ours, _ = CASES[case]
    rates = torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)
    w, centre, strength = drawn(*lead, 6), drawn(*lead, 6, seed=9), drawn(*lead, seed=8).abs()
    together, state = w, ours.init(w)
    alone = [(row[None], ours.init(row[None])) for row in w]
    for t in range(3):
        grads = drawn(*lead, 6, seed=t + 1)
        gradient = Gradient(grads, torch.zeros(lead)).pulled(centre, strength)
        together, state = ours.step(together, gradient, state, rates)
        for i, (row, own) in enumerate(alone):
            its = Gradient(grads[i : i + 1], torch.zeros(1, *lead[1:])).pulled(centre[i : i + 1], strength[i : i + 1])
            alone[i] = ours.step(row, its, own, float(rates[i]))
        close(together, torch.cat([row for row, _ in alone]))


@pytest.mark.parametrize("case", ["sgd", "momentum", "adam"])
def test_a_step_on_some_columns_moves_nothing_else(case: str) -> None:
    made: dict[str, Optimizer] = {"sgd": SGD(0, 0.1), "momentum": SGD(0.9, 0.1), "adam": Adam(0.1)}
    solver, columns = (
        made[case],
        Columns(("b", "buffer"), ((32, 64), (96, 128)), 32),
    )  # of 96 parameters and 32 statistics
    w, alone = drawn(2, 128), drawn(2, 128)[:, 32:64]
    w[:, 32:64] = alone
    state, own = solver.init(w, columns), solver.init(alone)
    after = w
    for t in range(3):
        grads, moved = drawn(2, 128, seed=t), drawn(2, 32, seed=9)
        gradient = pulled(grads, torch.ones_like(grads), 1.0)
        after, state = solver.step(after, replace(gradient, buffers=moved), state, 0.1, columns)
        part = pulled(grads[:, 32:64], torch.ones_like(grads[:, 32:64]), 1.0)
        alone, own = solver.step(alone, part, own, 0.1)
    assert torch.equal(after[:, :32], w[:, :32]) and torch.equal(after[:, 64:96], w[:, 64:96])
    torch.testing.assert_close(after[:, 32:64], alone)
    assert torch.equal(after[:, 96:], moved)
    without = Columns(("b",), ((32, 64),), 32)
    still, _ = solver.step(w, replace(gradient, buffers=moved), solver.init(w, without), 0.1, without)
    assert torch.equal(still[:, 96:], w[:, 96:])
