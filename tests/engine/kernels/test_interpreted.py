"""The GPU's kernels on a CPU, by Triton's interpreter, where Triton is installed: they say what PyTorch says."""

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import Tensor

if find_spec("triton") is None or torch.cuda.is_available():
    pytest.skip("no Triton here, or a GPU, where test_cuda.py holds the compiled kernels", allow_module_level=True)
if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
    pytest.skip("the interpreter of Triton 3.6 takes no NumPy from 2.4 on", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before it is first imported

from coterie.engine.kernels import (
    lstm,
    norm,
    pool,
    row_layers,
    triton_conv,
    triton_depthwise,
    triton_lstm,
    triton_norm,
    triton_pool,
    trusted,
)

# Which says what is kept for the way back needs a gradient of its own, and so cannot be checked with all outputs.
CHECKED = ("test_schema", "test_autograd_registration", "test_faketensor")


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("step", [0, 2])
def test_a_step_of_an_lstm(keep: bool, step: int) -> None:
    torch.manual_seed(0)
    k, b, steps, h = 2, 3, 4, 64
    driven, recurrent = torch.randn(k, b, steps, 4 * h), torch.randn(k, b, 4 * h)
    found, expected = (
        [torch.full((k, b, n, width), 0.3) for n, width in ((held, 4 * h), (held, h), (steps, h))]
        for held in [steps if keep else 1] * 2
    )
    triton_lstm.cell(driven, recurrent, *found, step)
    lstm._cell(driven, recurrent, *expected, step)
    for one, other in zip(found[0 if keep else 1 :], expected[0 if keep else 1 :], strict=True):
        assert apart(one, other) < 1e-6


@pytest.mark.parametrize("step", [0, 2])
def test_a_step_of_an_lstm_back(step: int) -> None:
    torch.manual_seed(0)
    k, b, steps, h = 2, 3, 4, 64
    g, memories = torch.randn(2, k, b, steps, h)
    gates, recurrent = torch.rand(k, b, steps, 4 * h), torch.randn(k, b, h)
    carried, slopes = torch.randn(1, k, b, h).repeat(2, 1, 1, 1), torch.zeros(2, k, b, steps, 4 * h)
    for i, way in enumerate((triton_lstm.cell_back, lstm._cell_back)):
        way(g, recurrent, carried[i], gates, memories, slopes[i], step)
    assert apart(slopes[0], slopes[1]) < 1e-6 and apart(carried[0], carried[1]) < 1e-6


@pytest.mark.parametrize("top", [None, float("inf"), 1.0], ids=["alone", "relu", "cut off"])
@pytest.mark.parametrize("channels", [24, 130])
def test_batch_norm(channels: int, top: float | None) -> None:
    torch.manual_seed(0)
    x = (7 + torch.randn(2, 700, channels)).requires_grad_()  # more lines than a tile has
    w, bias = torch.randn(2, 2, channels).unbind()
    ours = triton_norm.normalized(x.detach(), w, bias, 1e-5, top)
    w, bias = (t.clone().requires_grad_() for t in (w, bias))
    y, mean, variance = row_layers.batch_norm(x.flatten(0, 1), 2, w, bias, 1e-5, None, top)
    theirs = (y.view_as(x), mean, variance * 699 / 700)
    g = torch.randn_like(x)
    expected = torch.autograd.grad(theirs[0], (x, w, bias), g)
    found = triton_norm.gradient(g, x.detach(), *ours[1:], w.detach(), bias.detach(), 1e-5, top)
    for one, other in zip((*ours, found[0], found[1][:, 0], found[1][:, 1]), (*theirs, *expected), strict=True):
        assert apart(one, other.detach()) < 1e-5


@pytest.mark.parametrize("channels, size, stride", [(24, 9, 1), (70, 6, 2), (24, 1, 1)])
def test_filters_of_a_depthwise_convolution(channels: int, size: int, stride: int) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2 * 3, channels, size, size), torch.randn(2, channels, 1, 3, 3, requires_grad=True)
    y = row_layers.depthwise(x, 2, w, None, stride, 1)
    g = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, w, g)
    images, slopes = (t.permute(0, 2, 3, 1).unflatten(0, (2, 3)).contiguous() for t in (x, g))
    found = triton_depthwise.filter_gradient(images, slopes, 3, stride, 1)
    assert apart(found, expected.flatten(2).transpose(1, 2)) < 1e-5


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [32, 16], ids=["one tap in a block", "two"])
def test_convolutions(channels: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(triton_conv, "_shared", lambda _: 16384)  # small blocks: several in each direction
    x = torch.randn(2 * 2, channels, 7, 7, requires_grad=True)
    w = torch.randn(2, 32, channels, 3, 3, requires_grad=True)
    y = row_layers.grouped_conv(x, 2, w, None, (stride, stride), (1, 1), (1, 1), 1)
    g = torch.randn_like(y)
    expected = [y, *torch.autograd.grad(y, (x, w), g)]
    images, slopes = (t.detach().permute(0, 2, 3, 1).unflatten(0, (2, 2)).contiguous() for t in (x, g))
    filters = w.detach().permute(0, 3, 4, 2, 1).flatten(1, 3).contiguous()
    for parts in (1, 2):
        found = [
            triton_conv.convolve(images, filters, 3, stride, 1).flatten(0, 1).permute(0, 3, 1, 2),
            triton_conv.image_gradient(slopes, filters, images.shape, 3, stride, 1).flatten(0, 1).permute(0, 3, 1, 2),
            triton_conv.filter_gradient(images, slopes, 3, stride, 1, parts)
            .unflatten(1, (3, 3, channels))
            .permute(0, 4, 3, 1, 2),
        ]
        for one, other in zip(found, expected, strict=True):
            assert apart(one, other.detach()) < 1e-5


@pytest.mark.parametrize("size, height", [(2, 6), (2, 7), (3, 10)])
def test_max_pooling(size: int, height: int) -> None:
    torch.manual_seed(0)
    x = torch.randint(9, (5, height, 6, 24)).float().requires_grad_()  # with equal ones: the first of them counts
    y = torch.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), size).permute(0, 2, 3, 1)
    g = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, g)
    found, places = triton_pool.pooled(x.detach(), size)
    assert torch.equal(found, y)
    assert torch.equal(triton_pool.gradient(g.contiguous(), places, height, 6, size), expected)


def test_operations_are_what_a_compiler_takes_them_for() -> None:
    x, w = torch.randn(2, 9, 24, requires_grad=True), torch.randn(2, 24, requires_grad=True)
    torch.library.opcheck(norm.row_norm, (x, w, w.detach().requires_grad_(), 1e-5, 6.0), test_utils=CHECKED)
    torch.library.opcheck(pool.pooled, (torch.randn(2, 4, 5, 8, requires_grad=True), 2))
    driven, by_state = torch.randn(2, 3, 4, 32, requires_grad=True), torch.randn(2, 32, 8, requires_grad=True)
    torch.library.opcheck(lstm.row_lstm, (driven, by_state, True), test_utils=CHECKED)


@pytest.mark.parametrize("name", list(trusted.CHECKS))
def test_what_is_asked_of_a_kernel_before_it_is_used_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (row_layers, lstm):
        monkeypatch.setattr(module, "right", lambda _, x: x.dtype == torch.float32)
    assert trusted.holds(trusted.CHECKS[name], torch.device("cpu"), torch.float32)
