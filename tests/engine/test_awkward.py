"""Any nn.Module trains as plain PyTorch trains it for each silo alone, or is refused in words before training."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from awkward import (
    PICTURES,
    REFUSED,
    TEXTS,
    TOKENS,
    TRAINED,
    Float32Cell,
    LargeBatch,
    Mostly,
    NormOfThree,
    Seldom,
    words,
)
from plain import CLASSES, TRAINING, batches, by_hook, by_steps, close, data, loss_of, make_engine, make_silos
from torch import Tensor, nn

from coterie.data.silo import Part, Silo
from coterie.engine.kernels.dropout import KeyedDropout
from coterie.engine.measuring import measure
from coterie.engine.plan import BatchPlan
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.task import Batch
from coterie.errors import BadInput
from coterie.run.assembly import Assembly
from coterie.wire import Predictor

TRAIN = {"momentum": 0.9, "weight_decay": 0.05, "local_epochs": 3}
TEST = (9, 2, 5)


def silos_for(name: str) -> list[Silo]:
    """Three silos of different sizes; no two of their batches end alike."""
    if name in TEXTS:
        made = make_silos(shape=(6,), tokens=TOKENS, test=TEST)
        return [Silo(s.name, *(Part(p.x, p.y[:, 0]) for p in (s.train, s.validation, s.test))) for s in made]
    return make_silos(shape=(2, 4, 4) if name in PICTURES else (5,), test=TEST)


def plain_module(build: Callable[[], nn.Module], model: Model, row: Tensor) -> nn.Module:
    """A module of its own with the weights and buffers of one row."""
    module = build()
    module = module._apply(lambda t: t.to(model.dtype) if t.is_floating_point() else t)
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for name, value in (model.frozen | model.layout.named(row)).items():
            named[name].copy_(value)
    module.train()
    return module


def trained_alone(build: Callable[[], nn.Module], engine: Simulator, silo: Silo, row: Tensor) -> nn.Module:
    """The textbook loop, with dropout's masks drawn as the engine draws them."""
    t = engine.training
    module = plain_module(build, engine.model, row)
    plan = BatchPlan((silo.name,), np.array([len(silo.train)]), t.batch_size, t.local_epochs, engine.seed, "train", 0)
    optimizer = torch.optim.SGD(module.parameters(), t.lr, t.momentum, weight_decay=t.weight_decay)
    x, y = data(silo, dtype=engine.model.dtype)
    for index, key in zip(batches(engine, silo), torch.from_numpy(plan.noise()[0]), strict=True):
        optimizer.zero_grad()
        with KeyedDropout(key, active=True):
            out = module(x[index])
        loss_of(out, y[index]).backward()
        optimizer.step()
    return module


def row_of(model: Model, module: nn.Module) -> Tensor:
    return model.layout.flatten(dict(module.named_parameters()) | dict(module.named_buffers()))


def held_to_plain_torch(build: Callable[[], nn.Module], silos: list[Silo], rows: int, **train: object) -> None:
    """Weights, buffers and test losses after some epochs are those of a plain loop for each silo."""
    engine = make_engine(build, silos, **(TRAIN | train))
    task = by_steps(engine)
    start, before = task.start(), engine.store["train"].x.clone()
    places = torch.arange(3).split(rows)
    ours = torch.cat([task.take(place).fit(start[place], "train") for place in places])
    losses = [measure(task.take(place), Predictor(models=ours[place]), "test")["loss"] for place in places]
    each = [task.take(place).losses(ours[place], "test") for place in places]
    assert torch.equal(engine.store["train"].x, before)
    for place, silo in enumerate(task.silos.tolist()):
        module = trained_alone(build, engine, silos[silo], start[place])
        close(ours[place], row_of(engine.model, module), 1e-9)
        assert not torch.allclose(ours[place], start[place])
        x, y = data(silos[silo], "test", engine.model.dtype)
        module.eval()
        with torch.no_grad():
            expected = loss_of(module(x), y)
        close(torch.cat(losses)[place], expected, 1e-9)
        close(each[place // rows][place % rows].sum() / len(y), expected, 1e-9)
    engine.model.module_of(ours[0])  # which can be copied still


@pytest.mark.parametrize("rows", [3, 1])
@pytest.mark.parametrize("name", TRAINED)
def test_a_module_trains_as_in_plain_torch(name: str, rows: int) -> None:
    held_to_plain_torch(TRAINED[name], silos_for(name), rows)


@pytest.mark.parametrize("name", TRAINED)
def test_a_loss_on_features_has_the_gradients_of_plain_torch(name: str) -> None:
    engine, silos = make_engine(TRAINED[name], silos_for(name)), silos_for(name)
    task = by_steps(engine)
    models, batch = task.start(common=False), task.first_batch()

    def loss(out: Tensor, batch: Batch, features: Tensor | None) -> Tensor:
        assert features is not None
        return engine.model.sample_losses(out, batch.y) + features.square().flatten(2).sum(2)

    got, head = task.grad(models, batch, loss=loss, features=True), engine.model.head
    for place, silo in enumerate(task.silos.tolist()):
        x, y = (t[: batch.x.shape[1]] for t in data(silos[silo]))
        module = plain_module(TRAINED[name], engine.model, models[place])
        with KeyedDropout(torch.zeros((), dtype=torch.int64), active=True):
            out, features = by_hook(module, head, x)
        (loss_of(out, y) + features.square().sum() / len(x)).backward()
        grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}
        zero = {n: torch.zeros_like(b) for n, b in module.named_buffers() if b.is_floating_point()}
        close(got.grads[place], engine.model.layout.flatten(grads | zero), 1e-9)


@pytest.mark.parametrize("name", TRAINED)
def test_features_are_those_of_plain_torch(name: str) -> None:
    engine, silos = make_engine(TRAINED[name], silos_for(name)), silos_for(name)
    task = by_steps(engine)
    models = task.start(common=False)
    ours = task.features(models, "test")
    for place, silo in enumerate(task.silos.tolist()):
        x, _ = data(silos[silo], "test")
        module = plain_module(TRAINED[name], engine.model, models[place])
        module.eval()
        close(ours[place, : len(x)], by_hook(module, engine.model.head, x)[1])


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_rows_cannot_repeat_is_refused_in_words(name: str) -> None:
    build, said = REFUSED[name]
    with pytest.raises(BadInput, match=said):
        make_engine(build, silos_for(name))


def test_what_is_done_to_large_batches_alone_is_done_to_them_as_they_are() -> None:
    held_to_plain_torch(LargeBatch, silos_for("plain"), 3, batch_size=8)


def test_a_part_that_a_small_batch_leaves_out_is_no_gradient_of_zero() -> None:
    engine = make_engine(NormOfThree, silos_for("plain"), batch_size=3)
    task = by_steps(engine)
    with pytest.raises(BadInput, match=r"'norm.bias', 'norm.weight' of the model gets a gradient from some batches"):
        task.fit(task.start(), "train")


@pytest.mark.parametrize(("build", "value"), [(Seldom, 10.0), (Mostly, -10.0)])
def test_a_part_that_one_silo_takes_and_another_does_not_is_no_gradient_of_zero(build, value: float) -> None:
    silos = make_silos((8, 8, 8))  # which always train side by side
    silos[2].train.x[:, 0] = value
    task = by_steps(make_engine(build, silos))
    with pytest.raises(
        BadInput, match=r"'second.bias', 'second.weight' of the model gets a gradient from some batches"
    ):
        task.fit(task.start(), "train")


def test_sparse_gradients_are_the_same_numbers() -> None:
    held_to_plain_torch(words(sparse=True), silos_for("padding"), 3, momentum=0.0, weight_decay=0.0)


def test_weights_that_a_layer_shortens_are_refused() -> None:
    with pytest.raises(BadInput, match=r"changes its parameter 'embed.weight'"):
        make_engine(words(max_norm=1e3), silos_for("padding"))  # so long that nothing is to be seen of it yet


def test_a_module_that_knows_float32_alone_runs_in_it() -> None:
    silos = silos_for("plain")
    engine = make_engine(Float32Cell, silos, dtype=torch.float32, **TRAIN)
    task = by_steps(engine)
    start = task.start()
    ours = task.fit(start, "train")
    for place, silo in enumerate(task.silos.tolist()):
        module = trained_alone(Float32Cell, engine, silos[silo], start[place])
        close(ours[place], row_of(engine.model, module), 1e-5)


def test_a_module_that_knows_another_type_than_is_trained_is_refused_before_training() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.double())

    silos = silos_for("plain")
    with pytest.raises(BadInput, match=r"cannot take samples of shape \(\d+,\): .*dtype"):
        by_steps(make_engine(lambda: Doubled(silos[0].train.x.shape[1], CLASSES), silos, dtype=torch.float32))


def test_a_given_module_is_looked_at_before_it_is_copied() -> None:
    with pytest.raises(BadInput, match="no size yet"):
        Model(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3)), 3)
    lazy = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3))
    lazy(torch.zeros(1, 5))  # has its sizes now
    Model(lazy, 3).probe(torch.randn(2, 5))


def test_a_batch_serves_twice_though_the_module_changes_it() -> None:
    engine = make_engine(TRAINED["input in place"], silos_for("plain"))
    task = by_steps(engine)
    batch = task.first_batch()
    first, again = (task.grad(task.start(), batch).grads for _ in range(2))
    assert torch.equal(first, again)


def test_what_is_probed_is_not_changed() -> None:
    x = torch.randn(4, 5, dtype=torch.float64)
    before = x.clone()
    Model(TRAINED["input in place"], 3, dtype=torch.float64).probe(x)
    assert torch.equal(x, before)


def test_assembling_silos_does_not_change_their_data() -> None:
    silos = silos_for("plain")
    before = [silo.train.x.copy() for silo in silos]
    Assembly(silos, TRAINED["input in place"], 3, TRAINING, device="cpu")
    for silo, x in zip(silos, before, strict=True):
        assert (silo.train.x == x).all()


def test_every_word_counts_as_padding_where_it_is_only_in_later_samples() -> None:
    """The way is chosen by what the module does, not by what the first samples happen to hold."""
    silos = silos_for("padding")
    for silo in silos:
        silo.train.x[:] = silo.train.x.clip(1)
        silo.train.x[-1, :3] = 0
    held_to_plain_torch(words(padding_idx=0), silos, 3)


@pytest.mark.slow
def test_the_way_does_not_depend_on_whose_samples_are_looked_at() -> None:
    for name, build in TRAINED.items():
        found = set()
        for silo in silos_for(name):
            model = Model(build, 3, dtype=torch.float64)
            model.probe(data(silo)[0][:2])
            found.add((model.way, model.couples_samples, model.couples_evaluation))
        assert len(found) == 1, name
