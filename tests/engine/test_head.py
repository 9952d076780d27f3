"""The head of a module is its last layer with weights; what it is given are the features of a sample."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from awkward import TRAINED, Net, UnusedBeside, UnusedByLoop
from plain import CLASSES, as_row, by_hook, by_steps, client, close, data, make_engine, make_silos
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.data.silo import Silo
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.task import Batch, Task
from coterie.errors import BadInput
from coterie.models.resnet import ResNet, resnet18
from coterie.wire import State, rows

PRIOR = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()


class HeadFirst(Net):
    """Registered before what runs before it."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.first = self._modules.pop("out"), self._modules.pop("first")  # type: ignore[assignment]


class TwoHeads(Net):
    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        return torch.cat([self.out(h), self.other(h)], 1)

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(6, 1)


class AroundTheHead(Net):
    """The output knows the sample by another way, without weights or gradients."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + x.detach()[:, :CLASSES]


class Scaled(Net):
    """A weight behind the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        return self.scale * super().forward(x)


class Twice(Net):
    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        return self.out(h) + self.out(2 * h)


class FourSteps(Net):
    """The head is given steps before samples, and four samples look like as many steps."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(torch.stack([x, 2 * x, 3 * x, 4 * x], 0)).sum(0)


class RecurrentLast(Net):
    """A last layer that gives more than its output."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.GRU(6, CLASSES, batch_first=True)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Any:
        return self.out(torch.tanh(self.first(x))[:, None])[0][:, 0]


class Spare(Net):
    """A second head that runs last and is not asked."""

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        out = self.out(h)
        self.first(x)
        return out


class ChangedAfter(Net):
    """The head's output is changed in place."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).mul_(2)


class ReadDuringTraining(Net):
    """In training the last layer to run is another."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return out + self.extra(out) if self.training else out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES), nn.Identity()
    )


def resnet() -> nn.Module:
    return resnet18(ResNet(width=8), (2, 8, 8), CLASSES)


def untracked() -> nn.Module:
    norm = nn.BatchNorm1d(8, track_running_stats=False)
    return nn.Sequential(nn.Linear(5, 8), norm, nn.ReLU(), nn.Linear(8, CLASSES))


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


def linear() -> nn.Module:
    return nn.Linear(5, CLASSES)


# The module, its head and how it runs.
CASES: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "mlp": (mlp, "2", "rewritten"),
    "cnn": (cnn, "4", "rewritten"),
    "resnet": (resnet, "13", "rewritten"),
    "batchnorm": (batchnorm, "3", "rewritten"),
    "untracked": (untracked, "3", "rewritten"),
    "head registered first": (HeadFirst, "out", "rewritten"),
    "output changed in place": (ChangedAfter, "out", "vmap"),
    "linear": (linear, "", "vmap"),
    "vmap": (UnusedBeside, "out", "vmap"),
    "batch mean": (TRAINED["batch mean"], "out", "vmap"),
    "loop": (UnusedByLoop, "out", "one by one"),
}
SHAPES = {"cnn": (2, 4, 4), "resnet": (2, 8, 8)}
each_case = pytest.mark.parametrize("name", CASES)


def engine_of(name: str, **train: object) -> tuple[Simulator, list[Silo]]:
    silos = make_silos(shape=SHAPES.get(name, (5,)), test=(9, 2, 5))
    return make_engine(CASES[name][0], silos, **train), silos


@each_case
def test_the_head_is_the_last_layer_with_weights_that_runs(name: str) -> None:
    engine, _ = engine_of(name)
    assert (engine.model.head, engine.model.way) == CASES[name][1:]


@each_case
def test_features_of_a_split_are_what_the_head_of_each_silos_module_is_given(name: str) -> None:
    engine, silos = engine_of(name)
    build, head, _ = CASES[name]
    task = by_steps(engine)
    models = task.start(common=False)
    one, two = task.features(models, "test"), task.features(torch.stack([models, 2 * models], 1), "test")
    assert not one.requires_grad
    for i, silo in enumerate(task.silos.tolist()):
        x, _ = data(silos[silo], "test")
        for scale, ours in ((1, one[i]), (1, two[i, 0]), (2, two[i, 1])):
            _, expected = by_hook(client(build, engine.model, scale * models[i]).eval(), head, x)
            close(ours[: len(x)], expected)
            assert (ours[len(x) :] == 0).all()


@each_case
def test_features_of_a_batch_are_in_evaluation_mode_and_know_nothing_of_its_filling(name: str) -> None:
    engine, silos = engine_of(name)
    build, head, _ = CASES[name]

    def look(part: Task, state: Watched, batch: Batch) -> Watched:
        ours = part.features(state.w, batch)
        for i, silo in enumerate(part.silos.tolist()):
            real = batch.mask[i] > 0
            x, _ = data(silos[silo])
            _, expected = by_hook(client(build, engine.model, state.w[i]).eval(), head, x[batch.index[i][real]])
            close(ours[i][real], expected)
            assert (ours[i][~real] == 0).all()
        return state

    task = by_steps(engine)
    task.run(look, Watched(w=task.start(common=False)), "train", epochs=1)


def test_features_of_a_split_that_nobody_has_are_none() -> None:
    task = by_steps(make_engine(mlp, make_silos(validation=(0, 0, 0))))
    assert task.features(task.start(), "validation").shape == (3, 0, 8)
    assert task.features(torch.stack([task.start()] * 2, 1), "validation").shape == (3, 2, 0, 8)


class Watched(State):
    """Rows that stand still while batches pass by."""

    w: Tensor = rows("the models", role="model")


def adjusted(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of logits to which the classes' log shares were added, of every sample."""
    return F.cross_entropy((out + PRIOR).flatten(0, -2), y.flatten(), reduction="none").view(y.shape)


def drawn_in(out: Tensor, y: Tensor, features: Tensor) -> Tensor:
    """Cross-entropy, and how far a sample's features lie from a centre of its class."""
    centres = torch.linspace(-1, 1, CLASSES, dtype=out.dtype)[y][..., None]
    plain = F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)
    return plain + 0.3 * (features - centres).square().sum(-1)


@pytest.mark.parametrize("models_each", [1, 2])
@pytest.mark.parametrize("through_features", [False, True], ids=["outputs", "features"])
@each_case
def test_gradients_of_a_loss_of_ones_own_are_autograd_on_the_exact_batches(
    name: str, through_features: bool, models_each: int
) -> None:
    """Partial batches, sample weights and the longest gradient count as they do for the usual loss."""
    engine, silos = engine_of(name)
    build, head, _ = CASES[name]
    task = replace(by_steps(engine), clip_gradient=0.5)
    start = torch.stack([task.start(common=False) * scale for scale in range(1, 1 + models_each)], 1)
    weights = torch.rand(3, models_each, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    partial = set[int]()

    def loss(out: Tensor, batch: Batch, features: Tensor | None) -> Tensor:
        assert (features is not None) == through_features
        return adjusted(out, batch.y) if features is None else drawn_in(out, batch.y, features)

    def step(part: Task, state: Watched, batch: Batch) -> Watched:
        weight = batch.of(weights[: part.k])
        got = part.grad(state.w, batch, weight, loss=loss, features=through_features)
        for i, silo in enumerate(part.silos.tolist()):
            index = batch.index[i][batch.mask[i] > 0]
            partial.add(len(index))
            x, y = (t[index] for t in data(silos[silo]))
            for j in range(models_each):
                module = client(build, engine.model, state.w[i, j])
                out, features = by_hook(module, head, x)
                each = drawn_in(out, y, features) if through_features else adjusted(out, y)
                expected = (each * weight[i, j][: len(index)]).mean()
                expected.backward()
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
                zero = {name: torch.zeros_like(b) for name, b in module.named_buffers()}
                theirs = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}
                close(got.grads[i, j], engine.model.layout.flatten(theirs | zero), 1e-5)  # the norm has an epsilon
                close(got.losses[i, j], expected)
                if got.buffers is not None:
                    close(got.buffers[i, j], as_row(engine.model, module)[engine.model.layout.trained :])
        return state

    task.run(step, Watched(w=start), "train", epochs=1)
    assert partial == {4, 3, 2}


def test_a_loss_that_is_not_of_every_sample_is_refused() -> None:
    task = by_steps(make_engine(mlp))
    with pytest.raises(BadInput, match=r"loss .* shape \(\).*\(3, 4\)"):
        task.grad(task.start(), task.first_batch(), loss=lambda out, batch, features: out.mean())


@pytest.mark.parametrize(
    "build",
    [TwoHeads, AroundTheHead, Scaled, Twice, Spare, ReadDuringTraining, FourSteps, RecurrentLast],
    ids=lambda build: build.__name__,
)
def test_a_module_without_a_telling_last_layer_trains_and_asks_for_the_head_where_it_is_needed(
    build: Callable[[], nn.Module],
) -> None:
    task = by_steps(make_engine(build))
    batch = task.first_batch()
    task.grad(task.start(), batch)
    asked = [
        lambda: task.model.head,
        lambda: task.features(task.start(), "test"),
        lambda: task.grad(task.start(), batch, loss=lambda out, b, z: adjusted(out, b.y), features=True),
    ]
    for ask in asked:
        with pytest.raises(BadInput, match=r'\[model\] head = "'):
            ask()


def test_a_head_may_be_given_and_may_be_several_layers() -> None:
    def build() -> nn.Module:
        head = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, CLASSES))
        return nn.Sequential(nn.Linear(5, 8), head)

    x = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for between in (nn.Identity(), nn.Softmax(-1)):
        model = Model(nn.Sequential(build(), between), CLASSES, dtype=torch.float64, head="0.1")
        start = model.starts(0, ["a", "b"], common=False)
        ours = model.features(start, x)
        assert model.head == "0.1"
        for i in range(2):
            close(ours[i], model.module_of(start[i])[0][0](x[i]))  # and not what the head made of it in place


def test_a_module_that_is_all_head_has_its_samples_for_features() -> None:
    x = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = Model(mlp, CLASSES, dtype=torch.float64, head="")
    assert torch.equal(model.features(model.starts(0, ["a", "b"], common=False), x), x)
    assert model.way == "rewritten"


def test_a_head_that_is_not_there_or_does_not_run_once_on_all_samples_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no layer 'outt'.*'out'"):
        Model(Net, CLASSES, head="outt")
    x = torch.randn(4, 5)
    for build, head in ((Twice, "out"), (TRAINED["unused, rewritten"], "spare"), (TRAINED["time major"], "second")):
        with pytest.raises(BadInput, match=f"'{head}'.* once"):
            Model(build, CLASSES, head=head).probe(x)


def test_a_model_that_has_seen_no_samples_knows_the_head_that_it_was_given_alone() -> None:
    assert Model(Net, CLASSES, head="out").head == "out"
    with pytest.raises(BadInput, match="samples"):
        _ = Model(Net, CLASSES).head
