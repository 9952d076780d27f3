"""On a GPU, where there is one: its kernels say what PyTorch says in float64, and models train as in a plain loop."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from plain import CLASSES, TRAINING, batches, by_steps, data, loss_of, make_silos
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.data.silo import Part, Silo
from coterie.engine import rows as rows_module
from coterie.engine.kernels import row_layers, trusted
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.methods.fedavg import FedAvg
from coterie.models import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
GPU = torch.device("cuda")
KINDS = [torch.float32, torch.bfloat16]
NEAR = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
INF = float("inf")
Layer = Callable[..., Sequence[Tensor]]


@pytest.fixture(autouse=True)
def held() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    for kind in KINDS:
        trusted.hold(trusted.CHECKS, GPU, kind)


def apart(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-12))


def drawn(kind: torch.dtype, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
    return (mean + scale * torch.randn(shape, device=GPU)).to(kind).requires_grad_()


def as_in_float64(ours: Layer, theirs: Layer, given: Sequence[Tensor], near: float) -> None:
    """Outputs, and gradients of the first of them."""
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in given]
    found, expected = ours(*given), theirs(*exact)
    g = torch.randn_like(found[0])
    for one, other in zip(found, expected, strict=True):
        assert apart(one, other) < near
    leaves, wide = ([t for t in ts if t.requires_grad] for ts in (given, exact))
    slopes = torch.autograd.grad(found[0], leaves, g), torch.autograd.grad(expected[0], wide, g.double())
    for place, (one, other) in enumerate(zip(*slopes, strict=True)):
        assert one.shape == other.shape and apart(one, other) < near, place


@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_passes_what_is_asked_of_it(kind: torch.dtype) -> None:
    assert [name for name in trusted.CHECKS if not trusted.right(name, torch.ones(1, device=GPU, dtype=kind))] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rows, batch, channels, filters, size, kernel, stride, padding",
    [
        (2, 4, 16, 16, 16, 3, 1, 1),
        (3, 5, 16, 32, 15, 3, 2, 1),
        (3, 4, 64, 64, 8, 3, 1, 1),
        (2, 4, 64, 128, 9, 1, 2, 0),
        (2, 4, 128, 256, 8, 3, 2, 1),
        (2, 3, 512, 512, 4, 3, 1, 1),
        (3, 8, 32, 64, 12, 5, 1, 0),
        (3, 8, 3, 32, 32, 3, 1, 1),
        (3, 8, 1, 20, 28, 5, 1, 0),
        (12, 32, 20, 50, 14, 5, 1, 0),
        (3, 8, 24, 40, 8, 1, 1, 0),
    ],
)
def test_convolutions(
    rows: int, batch: int, channels: int, filters: int, size: int, kernel: int, stride: int, padding: int,
    kind: torch.dtype,
) -> None:  # fmt: skip
    x = drawn(kind, rows * batch, channels, size, size).requires_grad_(channels >= 8)
    w, bias = drawn(kind, rows, filters, channels, kernel, kernel, scale=0.1), drawn(kind, rows, filters)
    as_in_float64(
        lambda x, w, b: [row_layers.conv(x, rows, w, b, stride, padding)],
        lambda x, w, b: [row_layers.grouped_conv(x, rows, w, b, (stride,) * 2, (padding,) * 2, (1, 1), 1)],
        [x, w, bias],
        NEAR[kind],
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rows, batch, channels, size, kernel, stride",
    [(3, 4, 32, 16, 3, 1), (5, 4, 96, 15, 3, 2), (4, 6, 144, 4, 3, 2), (4, 6, 960, 1, 3, 1), (2, 9, 24, 9, 5, 1)],
)
def test_depthwise_convolutions(
    rows: int, batch: int, channels: int, size: int, kernel: int, stride: int, kind: torch.dtype
) -> None:
    x, w = drawn(kind, rows * batch, channels, size, size), drawn(kind, rows, channels, 1, kernel, kernel)
    as_in_float64(
        lambda x, w: [row_layers.depthwise(x, rows, w, None, stride, kernel // 2)],
        lambda x, w: [row_layers.grouped_conv(x, rows, w, None, (stride,) * 2, (kernel // 2,) * 2, (1, 1), channels)],
        [x, w],
        NEAR[kind],
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top", [None, INF, 6.0], ids=["alone", "ReLU", "ReLU6"])
@pytest.mark.parametrize("shape", [(3, 8, 16, 9, 9), (2, 40, 130, 33, 33), (5, 7, 64), (2, 4, 512, 1, 1)])
def test_batch_norm(shape: tuple[int, ...], top: float | None, kind: torch.dtype) -> None:
    rows, batch, channels, *sides = shape
    x = drawn(kind, rows * batch, channels, *sides, scale=2.0, mean=3.0)
    w, bias = drawn(kind, rows, channels), drawn(kind, rows, channels)
    as_in_float64(
        lambda x, w, b: row_layers.batch_norm(x, rows, w, b, 1e-5, None, top),
        lambda x, w, b: row_layers.batch_norm(x, rows, w, b, 1e-5, None, top),
        [x, w, bias],
        NEAR[kind],
    )


@pytest.mark.parametrize("top", [None, INF])
def test_batch_norm_of_a_filled_batch_is_that_of_its_samples(top: float | None) -> None:
    """By the kernel alone, and by a mask."""
    x, w, bias = drawn(torch.float32, 2 * 6, 16, 5, 5), drawn(torch.float32, 2, 16), drawn(torch.float32, 2, 16)
    mask = (torch.arange(6, device=GPU) < 4).float().expand(2, 6)
    filled = row_layers.batch_norm(x, 2, w, bias, 1e-5, mask, top)
    samples = x.unflatten(0, (2, 6))[:, :4].flatten(0, 1)
    alone = row_layers.batch_norm(samples, 2, w, bias, 1e-5, None, top)
    assert apart(filled[0].unflatten(0, (2, 6))[:, :4].flatten(0, 1), alone[0]) < 1e-5
    assert max(apart(one, other) for one, other in zip(filled[1:], alone[1:], strict=True)) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "channels, height, width, size", [(32, 24, 24, 2), (20, 7, 9, 2), (130, 10, 6, 3), (64, 8, 8, 2)]
)
def test_max_pooling_of_equal_numbers(channels: int, height: int, width: int, size: int, kind: torch.dtype) -> None:
    """The first of them counts, as in PyTorch; NaN is the largest."""
    x = torch.randint(5, (6, channels, height, width), device=GPU).to(kind)
    x[0, 0, 0, 1] = torch.nan
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    ours, theirs = row_layers.max_pool(x, size, size, 0, 1, False), F.max_pool2d(x, size)
    g = torch.randn_like(theirs)
    (found,), (expected,) = (torch.autograd.grad(y, x, g) for y in (ours, theirs))
    assert torch.equal(ours.nan_to_num(9), theirs.nan_to_num(9)) and torch.equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows, batch, steps, before, units", [(3, 5, 7, 8, 40), (2, 33, 12, 64, 256), (4, 3, 1, 5, 6)])
@pytest.mark.parametrize("frozen", [False, True], ids=["own weights", "one for all"])
def test_lstm(rows: int, batch: int, steps: int, before: int, units: int, frozen: bool, kind: torch.dtype) -> None:
    shapes = [(4 * units, before), (4 * units, units), (4 * units,), (4 * units,)]
    x = drawn(kind, rows * batch, steps, before)
    weights = [drawn(kind, *([] if frozen else [rows]), *shape, scale=units**-0.5) for shape in shapes]

    def states(x: Tensor, *weights: Tensor) -> list[Tensor]:
        each = [row_layers.of_all(t, rows) if frozen else t for t in weights]
        out, (state, memory) = row_layers.lstm(x, rows, [list(each)], True)
        return [out, state, memory]

    as_in_float64(states, states, [x, *weights], {torch.float32: 2e-5, torch.bfloat16: 3e-2}[kind])
    with torch.no_grad():
        each = [row_layers.of_all(t, rows) if frozen else t for t in weights]
        kept, judged = (row_layers.lstm(x, rows, [list(each)], keep) for keep in (True, False))
    for one, other in zip((kept[0], *kept[1]), (judged[0], *judged[1]), strict=True):
        assert apart(one, other) < NEAR[kind]


def small() -> nn.Module:
    """All that is put together: BatchNorm with ReLU, pooling before bias and ReLU."""
    made = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(24 * 8 * 8, CLASSES))  # fmt: skip
    return made


def recurrent() -> nn.Module:
    return build({"name": "char-lstm", "hidden": 32}, (12,), 7)[0]()


def named(name: str) -> Callable[[], nn.Module]:
    return build({"name": name}, (1, 28, 28) if name == "cnn" else (3, 32, 32), CLASSES)[0]


UNEVEN = (23, 32, 22)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "small, compiled": small,
    "small": small,
    "char-lstm": recurrent,
    "cnn": named("cnn"),
    "cnn-apple": named("cnn-apple"),
    "resnet18": named("resnet18"),
    "mobilenet_v2": named("mobilenet_v2"),
}


def uneven(name: str) -> list[Silo]:
    """Silos of different sizes, whose last batches of 16 have 7, 16 and 6 samples."""
    if name != "char-lstm":
        return make_silos(UNEVEN, (1, 28, 28) if name == "cnn" else (3, 32, 32))
    made = make_silos(UNEVEN, (12,), tokens=7)
    return [Silo(s.name, *(Part(p.x, p.y[:, 0]) for p in (s.train, s.validation, s.test))) for s in made]


def moved(engine: Simulator, make: Callable[[], nn.Module], silo: Silo, start: Tensor, kind: torch.dtype) -> Tensor:
    """How far a plain loop moves weights and buffers from the start."""
    module, layout = make().to(GPU, kind), engine.model.layout
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for key, value in layout.named(start).items():
            tensors[key].copy_(value)
    optimizer = torch.optim.SGD(module.train().parameters(), engine.training.lr)
    x, y = (t.to(GPU) for t in data(silo, dtype=kind))
    for index in batches(engine, silo):
        optimizer.zero_grad()
        loss_of(module(x[index]), y[index]).backward()
        optimizer.step()
    return layout.flatten({key: tensors[key] for key in layout.names}) - start.to(kind)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_in_a_plain_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As near to float64 as PyTorch's own float32: deep models multiply what is rounded."""
    if "compiled" not in name:
        monkeypatch.setattr(rows_module, "_compiled", lambda lowered: None)
    make, silos = MODELS[name], uneven(name)
    training = replace(TRAINING, local_epochs=1, lr=0.005, batch_size=16)
    engine = Simulator(FedAvg(), silos, Model(make, 7 if name == "char-lstm" else CLASSES, GPU), training, 1, "all")
    task = by_steps(engine)
    task = replace(task, silos=task.silos.to(GPU))
    start = task.start()
    ours = task.fit(start, "train") - start
    assert engine.model.way == "rewritten"
    for place, silo in enumerate(task.silos.tolist()):
        single, exact = (
            moved(engine, make, silos[silo], start[place], kind) for kind in (torch.float32, torch.float64)
        )
        assert apart(ours[place], exact) < max(1e-3, 4 * apart(single, exact)), silos[silo].name


def test_a_model_has_the_gradients_that_it_has_on_a_cpu() -> None:
    made = build({"name": "cnn-apple"}, (3, 32, 32), 10)[0]
    x, y, share = torch.randn(3, 16, 3, 32, 32), torch.randint(10, (3, 16)), torch.full((3, 16), 1 / 16)
    here, there = Model(made, 10, dtype=torch.float64), Model(made, 10, "cuda", precision="bf16")
    rows = here.starts(0, ["a", "b", "c"], common=False)
    expected = here.gradient(rows, x.double(), y, share.double())
    found = there.gradient(rows.float().cuda(), x.cuda(), y.cuda(), share.cuda())
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert ours is not None and theirs is not None
        assert apart(ours, theirs) < 0.2
