"""One row's convolutions, which take another way by their shapes: each is PyTorch's own up to rounding."""

import pytest
import torch
from torch.nn import functional as F

from coterie.engine.kernels import row_layers

# samples, channels, side of the images, filters, side of the filters, stride, padding
WAYS = {
    "channels last": (4, 3, 8, 8, 3, 1, 1),
    "channels first": (4, 6, 3, 20, 3, 2, 1),
    "unfolded": (1, 5, 2, 64, 3, 1, 1),
    "unfolded, with a stride": (1, 5, 5, 64, 3, 3, 1),
    "unfolded, one pixel each": (3, 5, 2, 64, 1, 2, 0),
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_convolution_of_one_row_is_pytorch_s(way: str, biased: bool) -> None:
    samples, channels, side, filters, kernel, stride, padding = WAYS[way]
    torch.manual_seed(0)
    x = torch.randn(samples, channels, side, side, dtype=torch.float64, requires_grad=True)
    w = torch.randn(1, filters, channels, kernel, kernel, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(1, filters, dtype=torch.float64, requires_grad=True) if biased else None
    found = row_layers.conv(x, 1, w, bias, stride, padding)
    expected = F.conv2d(x, w[0], None if bias is None else bias[0], stride, padding)
    torch.testing.assert_close(found, expected)
    slope, given = torch.randn_like(expected), [x, w] + ([bias] if bias is not None else [])
    for one, other in zip(
        torch.autograd.grad(found, given, slope), torch.autograd.grad(expected, given, slope), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_which_way_a_convolution_takes_goes_by_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    unfold, channels_last, seen = F.unfold, row_layers._channels_last, list[str]()
    monkeypatch.setattr(F, "unfold", lambda *given: (seen.append("unfolded"), unfold(*given))[1])
    monkeypatch.setattr(row_layers, "_channels_last", lambda x: (seen.append("channels last"), channels_last(x))[1])
    for way, (samples, channels, side, filters, kernel, stride, padding) in WAYS.items():
        x, w = torch.ones(samples, channels, side, side), torch.ones(1, filters, channels, kernel, kernel)
        seen.clear()
        row_layers.conv(x, 1, w, None, stride, padding)
        assert (seen or ["channels first"]) == [way.split(",")[0]]


@pytest.mark.parametrize("biased", [False, True])
def test_several_rows_of_large_images_are_each_row_by_itself(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(3 * 2, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 5, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, 5, dtype=torch.float64, requires_grad=True) if biased else None
    given, slope = [x, w] + ([bias] if bias is not None else []), torch.randn(6, 5, 3, 3, dtype=torch.float64)
    unfolded = row_layers.conv(x, 3, w, bias, 2, 1)
    monkeypatch.setattr(row_layers, "LARGE", 2 * 3 * 3 * 4 * 3 * 3)
    monkeypatch.setattr(row_layers, "convolved", None)  # not called
    found = row_layers.conv(x, 3, w, bias, 2, 1)
    torch.testing.assert_close(found, unfolded)
    grads = (torch.autograd.grad(y, given, slope) for y in (found, unfolded))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
