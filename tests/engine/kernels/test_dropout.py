"""Dropout draws from a key: a silo's mask does not depend on which rows share its call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain import CLASSES, as_row, by_steps, client, close, loss_of, make_engine, make_silos
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.engine.called import Called
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.solver import NoState
from coterie.engine.task import Batch, Task, Weights


class Layers(nn.Module):
    """With nn.Dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Dropout(0.2), nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class Functions(nn.Module):
    """With F.dropout, as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.second(F.dropout(torch.relu(self.first(x)), 0.4, training=self.training))


class Shown(nn.Module):
    """Shows its masks: ones go in, what dropout leaves of them comes out."""

    def __init__(self, *drops: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.scale, self.drops = nn.Parameter(torch.ones(())), drops

    def forward(self, x: Tensor) -> Any:
        return self.scale * torch.stack([drop(x, self.training) for drop in self.drops], 1)


def whole(x: Tensor, training: bool) -> Tensor:
    return F.dropout(x, 0.3, training)


def by_channel(x: Tensor, training: bool) -> Tensor:
    return F.dropout2d(x, 0.3, training)


def masks(model: Model, x: Tensor, keys: list[int], training: bool = True) -> Tensor:
    rows = model.start(0).expand(len(keys), -1)
    return model.forward(rows, x.expand(len(keys), *x.shape), training, torch.tensor(keys))[0]


@pytest.mark.parametrize("probed", [False, True])
@pytest.mark.parametrize("build", [Layers, Functions])
def test_training_does_not_depend_on_rows(build: Callable[[], nn.Module], probed: bool) -> None:
    def train(rows: int | str) -> Tensor:
        return one_round(make_engine(build, rows=rows, probe=probed))

    together = train("all")
    assert torch.equal(train("all"), together)
    close(train(1), together)
    close(train(2), together)


def one_round(engine: Simulator) -> Tensor:
    task = by_steps(engine)
    start = task.start()
    parts = [task.take(place).fit(start[place], "train") for place in torch.arange(3).split(engine.rows)]
    return torch.cat(parts)


def test_dropout_takes_part_in_training() -> None:
    def undropped() -> nn.Module:
        module = Layers()
        for layer in module.net:
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        return module

    assert not torch.allclose(one_round(make_engine(Layers)), one_round(make_engine(undropped)))


def test_a_gradient_is_autograd_through_the_same_mask() -> None:
    engine = make_engine(Functions)
    task = by_steps(engine)
    models, batch = task.start(common=False), task.first_batch()
    got = task.grad(models, batch)

    class Masked(Functions):
        def forward(self, x: Tensor) -> Any:
            return self.second(torch.relu(self.first(x)) * self.mask)

    shown = Model(lambda: Shown(lambda x, training: F.dropout(x, 0.4, training)), 0, dtype=torch.float64)
    mask = masks(shown, torch.ones(4, 16, dtype=torch.float64), batch.keys.tolist())[:, :, 0]
    assert 0 < (mask == 0).double().mean() < 1
    for i in range(3):
        module = client(Masked, engine.model, models[i])
        module.mask = mask[i]
        loss_of(module(batch.x[i]), batch.y[i]).backward()
        grads = {name: p.grad for name, p in module.named_parameters()}
        close(got.grads[i], engine.model.layout.flatten(grads))  # type: ignore[arg-type]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_mask_has_the_right_rate_and_keeps_the_mean(p: float) -> None:
    model = Model(lambda: Shown(lambda x, training: F.dropout(x, p, training)), 0)
    out = masks(model, torch.ones(100, 200), [1, 2])
    for each in out:
        dropped = (each == 0).float().mean().item()
        assert dropped == pytest.approx(p, abs=4 * (p * (1 - p) / 20000) ** 0.5)
        assert torch.allclose(each[each != 0], torch.tensor(1 / (1 - p)))


def test_masks_are_as_random_in_rows_as_in_columns() -> None:
    out = masks(Model(lambda: Shown(lambda x, t: F.dropout(x, 0.5, t)), 0), torch.ones(400, 400), [12345])[0, :, 0]
    kept = (out != 0).float()
    for axis in (0, 1):
        assert (kept.mean(axis) - 0.5).abs().max() < 5 * 0.5 / 400**0.5
    centred = kept - 0.5
    neighbours = [(centred[1:] * centred[:-1]).mean(), (centred[:, 1:] * centred[:, :-1]).mean()]
    assert max(abs(float(each)) for each in neighbours) < 5 * 0.25 / 400


def test_steps_silos_layers_and_samples_get_different_masks() -> None:
    model = Model(lambda: Shown(whole, whole), 0)
    out = masks(model, torch.ones(8, 64), [1, 2, 3])
    first, second = out[:, :, 0], out[:, :, 1]
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0, 0], first[0, 1])
    for a, b in ((first[0], first[1]), (first[0], second[0]), (first[0], second[1])):
        both = ((a == 0) & (b == 0)).float().mean().item()
        assert both == pytest.approx(0.09, abs=0.06)  # independent: 0.3 × 0.3


def test_every_step_of_every_silo_has_a_key_of_its_own() -> None:
    seen: list[int] = []

    def step(task: Task, state: Weights, batch: Batch) -> Weights:
        seen.extend(batch.keys.tolist())
        return state

    task = by_steps(make_engine(Layers))
    task.run(step, Weights(w=task.start(), opt=NoState()), "train")
    assert len(set(seen)) == len(seen) == 6 + 4 + 4


def test_the_same_key_gives_the_same_mask_whoever_else_is_there() -> None:
    model = Model(lambda: Shown(whole), 0)
    x = torch.ones(4, 8)
    together = masks(model, x, [5, 6, 7])
    assert torch.equal(masks(model, x, [6])[0], together[1])
    assert torch.equal(masks(model, x, [7, 6])[1], together[1])
    # a partial batch has the mask of the beginning of a full one
    assert torch.equal(masks(model, x[:2], [6])[0], together[1, :2])


def test_evaluation_drops_nothing() -> None:
    model = Model(lambda: Shown(whole, by_channel), 0)
    assert (masks(model, torch.ones(4, 3, 2, 2), [1, 2], training=False) == 1).all()
    engine = make_engine(Layers)
    row = engine.model.start(0)
    x = torch.randn(2, 5, dtype=torch.float64)
    close(engine.model.forward(row[None], x[None], training=False)[0][0], client(Layers, engine.model, row).eval()(x))


def test_dropout2d_drops_whole_channels() -> None:
    out = masks(Model(lambda: Shown(by_channel), 0), torch.ones(20, 30, 4, 4), [1, 2])[:, :, 0]
    assert (out.amax((3, 4)) == out.amin((3, 4))).all()
    assert (out[..., 0, 0] == 0).float().mean().item() == pytest.approx(0.3, abs=0.06)
    again = masks(Model(lambda: Shown(by_channel), 0), torch.ones(20, 30, 4, 4), [2])[:, :, 0]
    assert torch.equal(again[0], out[1])  # by its key, too


def test_the_global_generator_has_no_say_and_is_left_alone() -> None:
    engine = make_engine(Layers, make_silos())
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first = one_round(engine)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(1)
    assert torch.equal(one_round(engine), first)


def test_dropout_beside_batchnorm_is_trained_through() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES))

    engines = [make_engine(build, rows=rows) for rows in ("all", 1)]
    together, alone = (one_round(engine) for engine in engines)
    close(alone, together)
    start = as_row(engines[0].model, engines[0].model.module_of(engines[0].model.start(1)))
    assert not torch.allclose(together[0], start)


@pytest.mark.parametrize("drop", [nn.Dropout(0.3), nn.Dropout2d(0.4)], ids=["numbers", "channels"])
def test_layers_that_drop_are_rewritten_for_rows_with_the_same_masks(drop: nn.Module) -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 3, 3), drop, nn.BatchNorm2d(3), nn.ReLU(), drop, nn.Flatten(), nn.Linear(12, 2)
        )

    rewritten, plain = (Model(build, 2, dtype=torch.float64) for _ in range(2))
    x, y, keys = torch.randn(3, 5, 1, 4, 4, dtype=torch.float64), torch.randint(2, (3, 5)), torch.tensor([3, 1, 2**61])
    for model in (rewritten, plain):
        model.probe(x[0])
        assert model.draws and model.way == "rewritten"
    plain._way = Called(plain.module, [c.name for c in plain.layout.buffers], draws=True, vmapped=True)
    rows, share = plain.starts(0, ["a", "b", "c"], common=False), torch.full((3, 5), 0.2, dtype=torch.float64)
    for ours, theirs in zip(
        rewritten.gradient(rows, x, y, share, keys), plain.gradient(rows, x, y, share, keys), strict=True
    ):
        assert ours is not None and theirs is not None
        close(ours, theirs)
