"""On a GPU, where there is one: its own kernels say what PyTorch's convolutions say."""

import pytest
import torch
from torch import Tensor

from coterie.engine.kernels import row_layers, trusted
from coterie.engine.rows import Model
from coterie.models import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found.double().cpu() - expected.double().cpu()).norm() / expected.double().cpu().norm())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_every_kernel_passes_what_is_asked_of_it(kind: torch.dtype) -> None:
    trusted.hold(trusted.CHECKS, torch.device("cuda"), kind)
    assert [name for name in trusted.CHECKS if not trusted.right(name, torch.ones(1, device="cuda", dtype=kind))] == []


@pytest.mark.parametrize(
    "rows, batch, channels, size, stride",
    [(3, 4, 32, 16, 1), (5, 4, 96, 16, 2), (3, 2, 24, 8, 1), (4, 6, 144, 4, 2), (4, 6, 160, 2, 2), (4, 6, 960, 1, 1)],
)
def test_depthwise_convolutions(rows: int, batch: int, channels: int, size: int, stride: int) -> None:
    torch.backends.cudnn.allow_tf32 = False
    trusted.hold(trusted.CHECKS, torch.device("cuda"), torch.float32)
    x = torch.randn(rows * batch, channels, size, size, device="cuda", requires_grad=True)
    w = torch.randn(rows, channels, 1, 3, 3, device="cuda", requires_grad=True)
    ours = row_layers.depthwise(x, rows, w, None, stride, 1)
    theirs = row_layers.grouped_conv(x, rows, w, None, (stride, stride), (1, 1), (1, 1), channels)
    g = torch.randn_like(theirs)
    found, expected = (torch.autograd.grad(y, (x, w), g) for y in (ours, theirs))
    for one, other in zip((ours, *found), (theirs, *expected), strict=True):
        assert apart(one, other) < 1e-5


@pytest.mark.parametrize(
    "rows, batch, channels, filters, size, kernel, padding",
    [(3, 8, 3, 32, 32, 3, 1), (3, 8, 1, 20, 28, 5, 0), (12, 32, 20, 50, 14, 5, 0), (3, 8, 24, 40, 8, 1, 0)],
    ids=["few channels", "one channel", "unaligned channels in parts", "nothing to gather"],
)
def test_convolutions_in_bf16(
    rows: int, batch: int, channels: int, filters: int, size: int, kernel: int, padding: int
) -> None:
    x = torch.randn(rows * batch, channels, size, size, device="cuda").bfloat16().requires_grad_(channels >= 8)
    w = (torch.randn(rows, filters, channels, kernel, kernel, device="cuda") / 10).bfloat16().requires_grad_()
    ours = row_layers.conv(x, rows, w, None, 1, padding)
    wide = [t.detach().double().requires_grad_(t.requires_grad) for t in (x, w)]
    theirs = row_layers.grouped_conv(wide[0], rows, wide[1], None, (1, 1), (padding, padding), (1, 1), 1)
    g = torch.randn_like(ours)
    found = torch.autograd.grad(ours, [t for t in (x, w) if t.requires_grad], g)
    expected = torch.autograd.grad(theirs, [t for t in wide if t.requires_grad], g.double())
    for one, other in zip((ours, *found), (theirs, *expected), strict=True):
        assert apart(one, other) < 1e-2


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
